"""`prune URL --keep N`: remove old checkpoints from a place to which they were copied.

A copy is good when its manifest is there and every shard has the size that the manifest gives: what the listing of an
object store tells. The best N good ones stay. Of the others those go that are older than the best good one, torn ones
included; without a good one nothing goes. Whatever is not named as a checkpoint is left alone. The manifest goes first,
so that what a kill leaves half removed is no checkpoint any more.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from oarlock.data import checkpoints, places, reporting
from oarlock.spec import errors

_NAME = re.compile(r"attempt-(\d+)-round-(\d+)-step-(\d+)")


class Copy(msgspec.Struct, frozen=True):
    """`files` gives each file's path in its file system by its name in the checkpoint. `order` as of `Checkpoint`."""

    name: str
    order: tuple[int, ...]
    files: dict[str, str]
    good: bool


def run(url: str, keep: int) -> int:
    """Returns how many were removed. Raises what `places` raises."""
    kind = places.scheme(url)
    if kind == "file":
        return len(checkpoints.prune(places.local(url), keep))
    if kind in ("http", "https"):
        raise errors.InvalidInput(f"{url}: nothing can be removed by {kind}", hint="use file, s3 or gs")
    system, root = places.filesystem(url)
    with places.foreign(url):
        doomed = spare(listed(system, root), keep)
        for copy in doomed:
            reporting.detail(f"removing {copy.name}")
            remove(system, copy)
    return len(doomed)


def spare(copies: list[Copy], keep: int) -> list[Copy]:
    """Those that may go, oldest first."""
    good = sorted((copy for copy in copies if copy.good), key=lambda copy: copy.order, reverse=True)
    if not good:
        return []
    kept = {copy.name for copy in good[: max(1, keep)]}
    return sorted(
        (copy for copy in copies if copy.name not in kept and copy.order < good[0].order), key=lambda copy: copy.order
    )


def listed(system: Any, root: str) -> list[Copy]:
    """What is named as a checkpoint below `root`."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path, info in system.find(root, detail=True).items():
        name, _, file = path.removeprefix(f"{root.rstrip('/')}/").partition("/")
        if file and _NAME.fullmatch(name):
            found.setdefault(name, {})[file] = {**info, "name": path}
    return [
        Copy(
            name,
            tuple(int(part) for part in _NAME.fullmatch(name).groups()),  # type: ignore[union-attr]  # matched above
            {file: info["name"] for file, info in files.items()},
            is_good(system, root, name, files),
        )
        for name, files in found.items()
    ]


def is_good(system: Any, root: str, name: str, files: dict[str, dict[str, Any]]) -> bool:
    info = files.get(checkpoints.MANIFEST)
    if info is None or (info.get("size") or 0) > checkpoints.MAX_MANIFEST_BYTES:
        return False
    try:
        manifest = msgspec.json.decode(system.cat_file(info["name"]), type=checkpoints.Manifest)
        checkpoints.check(Path(root, name), manifest)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, errors.InvalidInput):
        return False
    return all(shard.file in files and files[shard.file].get("size") == shard.bytes for shard in manifest.shards)


def remove(system: Any, copy: Copy) -> None:
    manifest = copy.files.get(checkpoints.MANIFEST)
    rest = [path for file, path in copy.files.items() if file != checkpoints.MANIFEST]
    for paths in ([manifest] if manifest is not None else [], rest):
        if paths:
            system.rm(paths)
