# Make the certificate of the server, unless there is one for these names: certificate.sh FOLDER URL NAME...
#
# The server signs it itself, so that FOLDER/server.pem is also the authority that pods and users trust. It is made
# again when the names change: the address of the Service is one of them.
set -eu
folder=$1 url=$2
shift 2
umask 077
host=${url#https://}
host=${host%%/*}
case $host in
    \[*) host=${host#\[} host=${host%%]*} ;;
    *:*:*) ;; # an IPv6 address without brackets
    *) host=${host%%:*} ;;
esac
names=
for name in "$host" "$@"; do
    case $name in
        *:*) names=${names:+$names,}IP:$name ;;
        *[!0-9.]*) names=${names:+$names,}DNS:$name ;;
        *) names=${names:+$names,}IP:$name ;;
    esac
done
mkdir -p "$folder"
if [ -s "$folder/server.pem" ] && [ "$names" = "$(cat "$folder/names" 2>/dev/null)" ]; then
    exit 0
fi
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=oarlock \
    -addext "subjectAltName=$names" -addext keyUsage=critical,digitalSignature,keyCertSign \
    -keyout "$folder/key.pem" -out "$folder/server.pem"
printf %s "$names" >"$folder/names"
