# The last step of a layer: slim.sh FOLDER compiles the Python sources below FOLDER, and removes what no container needs
# and what differs between two builds of the same content.
set -eu
find "$1" -name __pycache__ -type d -prune -exec rm -rf {} +
find "$1" -name tests -type d -path '*-packages/*' -prune -exec rm -rf {} +
PYTHONHASHSEED=0 python3 -m compileall -q -f --invalidation-mode unchecked-hash "$1" || true # some are for other versions
rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/* /tmp/*
