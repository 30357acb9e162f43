#!/usr/bin/env bash
# Build the images of the tests and load them into a test cluster: tests/node/images.sh CLUSTER FOLDER
#
# CLUSTER is a program: `CLUSTER image TAG DIR` builds DIR/Dockerfile and loads it, `CLUSTER load FILE` loads an archive. FOLDER
# keeps the digests of the contents from which images were built, and the facts of each (facts.py): an image is built again when its
# content has changed.
#
#   tests/node/images.sh again NAME FOLDER       build the image once more from a copy of the tree, and print its id
set -euo pipefail
cluster=$1 kept=${3:-$2}
cd "$(dirname "$0")/../.."
mkdir -p "$kept"
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot

fresh() { # fresh NAME PATH...: whether the node has this image of this content
    local name=$1 digest
    shift
    digest=$(find "$@" -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum)
    echo "$digest" >"$kept/$name.next"
    [[ $digest == "$(cat "$kept/$name" 2>/dev/null)" ]] \
        && kubectl get nodes -o 'jsonpath={.items[*].status.images[*].names[*]}' | tr ' ' '\n' | grep -qx "registry.example/$name:1"
}

done_with() { mv "$kept/$1.next" "$kept/$1"; }

small() { # small NAME: an image of tests/node/NAME
    fresh "$1" "tests/node/$1" && return
    cp -r "tests/node/$1" "$kept/$1.build"
    [[ ! -e $kept/$1.build/tool.c ]] || gcc -static -O2 -o "$kept/$1.build/tool" "$kept/$1.build/tool.c"
    "$cluster" image "registry.example/$1:1" "$kept/$1.build"
    rm -r "$kept/$1.build"
    done_with "$1"
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

large() { # large NAME TAG PATH...: an image of deploy/images
    local name=$1 tag=$2 archive=$kept/$2.tar
    shift 2
    fresh "$tag" deploy/images Dockerfile constraints.txt "$@" && return
    build . "$name" "registry.example/$tag:1"
    rm -f "$archive"
    buildah push -q "registry.example/$tag:1" "docker-archive:$archive:registry.example/$tag:1"
    "$cluster" load "$archive"
    python3 tests/node/facts.py "$archive" 1 >"$kept/$tag.json"
    rm "$archive"
    done_with "$tag"
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
small plain # it also makes the base of the others
small static
large server oarlock pyproject.toml src
large torch-cpu torch-cpu
