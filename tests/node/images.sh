#!/usr/bin/env bash
# Build the images of the tests and load them into a test cluster: tests/node/images.sh CLUSTER FOLDER
#
# CLUSTER is a program: `CLUSTER image TAG DIR` builds DIR/Dockerfile and loads it, `CLUSTER load FILE` loads an archive. FOLDER
# keeps the digests of the contents from which images were built, and the facts of each (facts.py): an image is built again when its
# content has changed, and loaded again when the node has lost it.
#
#   tests/node/images.sh again NAME FOLDER       build the image once more from a copy of the tree, and print its id
#   tests/node/images.sh facts NAME FOLDER       build the image of a framework, and write its facts alone
set -euo pipefail
cluster=$1 kept=${3:-$2}
cd "$(dirname "$0")/../.."
mkdir -p "$kept"
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot

built() { # built NAME PATH...: whether there is an image of this content
    local name=$1
    shift
    find "$@" -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum >"$kept/$name.next"
    cmp -s "$kept/$name.next" "$kept/$name" && buildah inspect --type image "registry.example/$name:1" >/dev/null 2>&1
}

id() { buildah images --quiet --no-trunc "registry.example/$1:1"; }

there() { # there NAME: whether the node has the image that was built
    [[ -e $kept/$1.loaded && $(<"$kept/$1.loaded") == "$(id "$1")" ]] \
        && kubectl get nodes -o 'jsonpath={.items[*].status.images[*].names[*]}' | tr ' ' '\n' | grep -qx "registry.example/$1:1"
}

load() { # load NAME
    local archive=$kept/$1.tar
    there "$1" && return
    rm -f "$archive"
    buildah push -q "registry.example/$1:1" "docker-archive:$archive:registry.example/$1:1"
    "$cluster" load "$archive"
    [[ ! -e $kept/$1.facts && -e $kept/$1.json ]] || python3 tests/node/facts.py "$archive" 1 >"$kept/$1.json"
    rm -f "$archive" "$kept/$1.facts"
    id "$1" >"$kept/$1.loaded"
}

small() { # small NAME: an image of tests/node/NAME
    if ! built "$1" "tests/node/$1"; then
        rm -rf "$kept/$1.build"
        cp -r --no-preserve=mode "tests/node/$1" "$kept/$1.build"
        [[ ! -e $kept/$1.build/tool.c ]] || gcc -static -O2 -o "$kept/$1.build/tool" "$kept/$1.build/tool.c"
        "$cluster" image "registry.example/$1:1" "$kept/$1.build" # it loads the image, too
        rm -r "$kept/$1.build"
        mv "$kept/$1.next" "$kept/$1"
        id "$1" >"$kept/$1.loaded"
        return
    fi
    load "$1"
}

# pip inside a build uses this machine's certificates and its folder of wheels.
settings() {
    printf 'unqualified-search-registries = ["docker.io"]\n' >"$kept/registries.conf"
    cp /etc/ssl/certs/ca-certificates.crt "$kept/"
    printf '[global]\ncert = /build-host/ca-certificates.crt\n' >"$kept/pip.conf"
    options=(-q --pull-never --registries-conf "$kept/registries.conf" -v "$kept:/build-host:ro" -v "$kept/pip.conf:/etc/pip.conf:ro")
    if [[ -d ${PIP_FIND_LINKS:-} ]]; then
        options+=(-v "$PIP_FIND_LINKS:/build-wheels:ro")
        echo 'find-links = /build-wheels' >>"$kept/pip.conf"
        export INDEX=
    fi
}

build() { # build TREE NAME TAG
    "$1/deploy/images/build" "$2" "$3" "${options[@]}" >"$kept/$2.log" 2>&1 || { tail -20 "$kept/$2.log" >&2; exit 1; }
}

large() { # large NAME TAG PATH...: an image of deploy/images, from these files and folders
    local name=$1 tag=$2
    shift 2
    if ! built "$tag" deploy/images/build deploy/images/{packages,slim}.sh constraints.txt "$@"; then
        build . "$name" "registry.example/$tag:1"
        touch "$kept/$tag.facts"
        mv "$kept/$tag.next" "$kept/$tag"
    fi
    load "$tag"
}

settings
if [[ $cluster == again ]]; then
    copy=$(mktemp -d)
    cp -R pyproject.toml constraints.txt README.md LICENSE Dockerfile .dockerignore src deploy "$copy"
    build "$copy" "$2" registry.example/again:1
    buildah images --quiet --no-trunc registry.example/again:1
    rm -r "$copy"
    exit
fi
if [[ $cluster == facts ]]; then
    build . "$2" "registry.example/$2:1"
    rm -f "$kept/$2.tar"
    buildah push -q "registry.example/$2:1" "docker-archive:$kept/$2.tar:registry.example/$2:1"
    python3 tests/node/facts.py "$kept/$2.tar" 1 >"$kept/$2.json"
    rm "$kept/$2.tar"
    exit
fi
small plain # it also makes the base of the others
small static
small mpi
large server oarlock Dockerfile deploy/images/runtime.py pyproject.toml README.md LICENSE src
for name in torch-cpu tensorboard; do
    large "$name" "$name" deploy/images/frameworks/{Dockerfile,"$name.txt"}
done
