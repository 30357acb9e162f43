# Install packages of Debian: packages.sh SNAPSHOT PACKAGE...
#
# SNAPSHOT is a time such as 20261101T000000Z: the packages are those of that time, from snapshot.debian.org. The signatures
# of the lists count, but not the date until which they are valid: it has passed. An empty SNAPSHOT takes the packages from
# the sources of the base image. Those stay in the image in both cases.
set -eu
snapshot=$1
shift
if [ -n "$snapshot" ]; then
    printf '%s\n' "$snapshot" | grep -Eqx '[0-9]{8}T[0-9]{6}Z' || {
        echo "SNAPSHOT=$snapshot is not a time of snapshot.debian.org. Write it as 20261101T000000Z." >&2
        exit 2
    }
    sources=$(mktemp -d)/snapshot.list
    options="[check-valid-until=no signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    for place in debian:bookworm debian:bookworm-updates debian-security:bookworm-security; do
        echo "deb $options http://snapshot.debian.org/archive/${place%:*}/$snapshot ${place#*:} main"
    done >"$sources"
    apt() { apt-get -o Dir::Etc::SourceList="$sources" -o Dir::Etc::SourceParts=- "$@"; }
else
    apt() { apt-get "$@"; }
fi
apt update
apt install --yes --no-install-recommends "$@"
