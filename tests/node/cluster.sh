#!/usr/bin/env bash
# Start a cluster of one node for the tests: tests/node/cluster.sh CLUSTER HOME
#
# CLUSTER is a program: `CLUSTER assets` prints the folder of the programs of Kubernetes, `up` and `node` start a cluster with a node in
# KUBE_TEST_HOME, `down` ends it, and `env` prints KUBECONFIG=... HOME is a folder of this cluster alone.
#
# Its kubelet removes no images. By itself it would begin once 85 % of the disk are used, by whatever else lies there, and a test would
# wait for an image that no pod has used yet.
set -euo pipefail
cluster=$1 home=$2
bin=$("$(dirname "$0")/../backends/kubernetes/testcluster/assets.sh" "$cluster")
mkdir -p "$home/bin"
for program in "$bin"/*; do
    [[ ${program##*/} == kubelet ]] || ln -sf "$(realpath "$program")" "$home/bin/"
done
printf '#!/bin/sh\nexec %s "$@" --image-gc-high-threshold=100\n' "$bin/kubelet" >"$home/bin/kubelet.next"
chmod +x "$home/bin/kubelet.next"
mv "$home/bin/kubelet.next" "$home/bin/kubelet"
export KUBE_TEST_HOME=$home
"$cluster" up --scheduler >/dev/null
"$cluster" node >/dev/null
"$cluster" env | grep ^KUBECONFIG=
