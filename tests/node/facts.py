"""The facts of an image in a docker archive, as JSON: its id, its user, the size of its own layers, its packages.

Usage: facts.py ARCHIVE BASE_LAYERS. The first layers are those of the base, which every image shares.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zlib
from pathlib import Path
from typing import IO, Any

_PACKAGE = re.compile(r"-packages/([^/]+)-([^/-]+)\.dist-info/METADATA$")
CHUNK = 1 << 20


def facts(archive: Path, base: int) -> dict[str, Any]:
    found: dict[str, Any] = {"unpacked": 0, "compressed": 0, "packages": []}
    with tarfile.open(archive) as tar:
        manifest_file = tar.extractfile("manifest.json")
        assert manifest_file is not None
        (manifest,) = json.load(manifest_file)
        found["id"] = manifest["Config"].removesuffix(".json")
        config = tar.extractfile(manifest["Config"])
        assert config is not None
        found["user"] = json.load(config)["config"].get("User", "")
        for name in manifest["Layers"][base:]:
            layer = tar.extractfile(name)
            assert layer is not None
            found["compressed"] += compressed(layer)
            layer.seek(0)
            with tarfile.open(fileobj=layer) as inner:
                for member in inner:
                    found["unpacked"] += member.size
                    match = _PACKAGE.search(member.name)
                    found["packages"] += [f"{match[1]} {match[2]}"] if match else []
    found["packages"].sort(key=str.lower)
    return found


def compressed(layer: IO[bytes]) -> int:
    """Return the size of the layer under gzip, at its fastest level."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    size = 0
    while chunk := layer.read(CHUNK):
        size += len(packer.compress(chunk))
    return size + len(packer.flush())


if __name__ == "__main__":
    json.dump(facts(Path(sys.argv[1]), int(sys.argv[2])), sys.stdout)
