#!/usr/bin/env bash
# Print the folder of kube-apiserver, etcd and kubectl for the tests: tests/backends/kubernetes/testcluster/assets.sh CLUSTER
#
# CLUSTER is a program: `CLUSTER assets` builds Debian's Kubernetes 1.20 in KUBE_TEST_HOME, where it is not there yet, and
# prints the folder of its programs.
#
# Kubernetes 1.20 brings version 1.0.1 of the Go package reflect2. Built with Go 1.18 or newer, its API server dies at the
# first custom object. The build gets the files of Debian's version 1.0.2 in their place.
set -euo pipefail
cluster=$1
package=golang-github-modern-go-reflect2-dev
export KUBE_TEST_HOME=${XDG_CACHE_HOME:-$HOME/.cache}/oarlock-kube
mkdir -p "$KUBE_TEST_HOME"
exec 9>"$KUBE_TEST_HOME/lock"
flock 9 # a second build at the same time would remove the files of the first

if [[ ! -x $KUBE_TEST_HOME/bin/kubelet ]]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
    version=$(apt-cache policy kubernetes-client | sed -n 's/ *Candidate: \(.*\)-[^-]*/\1/p')
    source=$KUBE_TEST_HOME/build/kubernetes-${version##*really}/_output/local/go/src/k8s.io/kubernetes
    vendored=$source/vendor/github.com/modern-go/reflect2
    {
        dpkg -L "$package" | grep '/reflect2/[^/]*\.\(go\|s\)$' | while read -r file; do
            printf '"%s": "%s"\n' "$vendored/${file##*/}" "$file"
        done
        # Files of the old version that the new one does without.
        printf '"%s": ""\n' "$vendored"/go_{above_17,below_17,below_19}.go
    } | paste -sd, | sed 's/.*/{"Replace": {&}}/' >"$KUBE_TEST_HOME/overlay.json"
    export GOFLAGS=-overlay=$KUBE_TEST_HOME/overlay.json
fi
nice "$cluster" assets
