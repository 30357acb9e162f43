# Prepare the home of one of several servers: share.sh HOME SHARED URL NAME...
#
# HOME belongs to this server alone, SHARED to all of them: the secrets that all must know, the certificate, and the data
# of jobs. The servers start at the same time, so that one of them at a time makes what is missing.
set -eu
home=$1 shared=$2
shift 2
umask 077
exec 9>"$shared/.preparing"
flock 9
if [ ! -s "$shared/token" ]; then
    printf 'oar_%s\n' "$(head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n')" >"$shared/token.new"
    mv "$shared/token.new" "$shared/token"
fi
if [ ! -s "$shared/task-secret" ]; then
    head -c 32 /dev/urandom >"$shared/task-secret.new"
    mv "$shared/task-secret.new" "$shared/task-secret"
fi
sh "$(dirname "$0")/certificate.sh" "$shared/tls" "$@"
for folder in blobs logs metrics files results secrets tls; do
    mkdir -p "$shared/$folder"
    ln -sfn "$shared/$folder" "$home/$folder"
done
ln -sfn "$shared/archive.jsonl" "$home/archive.jsonl" # of removed jobs
cp "$shared/token" "$shared/task-secret" "$home/"
