"""The snapshot of an archive that a browser sends: a zip, a tar or a tar.gz of the working directory.

The archive may be hostile. Its names are keys, never paths: every file lands below one fresh folder, links and devices
are refused, and all bounds hold for the bytes that are really read. The folder is then packed as the command line packs
it, with the same ignore rules and limits.
"""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from oarlock.client import packing, settings
from oarlock.spec import errors
from oarlock.spec.input import quantities

if TYPE_CHECKING:
    import tarfile
    import zipfile

    from oarlock.data.snapshots import snapshots

MOST_FILES = 20_000
MOST_NAME_BYTES = 1000
MOST_PART_BYTES = 255
BLOCK = 1 << 16
_HEADERS_BYTES = MOST_FILES * 4096
_DAMAGED = (zlib.error, gzip.BadGzipFile, EOFError, ValueError, RuntimeError)
_HINT = "Pack the folder again, with plain files and folders only."


class Item(NamedTuple):
    """A file of an archive. `open` reads it once, before the next item is asked for."""

    name: str
    executable: bool
    content: IO[bytes]


def snapshot(archive: Path, scratch: Path, limit_bytes: int) -> snapshots.Snapshot:
    """Return the snapshot of an archive. It lies below `scratch`, an empty folder of the caller's.

    Raises InvalidInput for an archive that is damaged, or that holds anything but files and folders with plain names;
    TooLarge for one with more files or bytes than a snapshot may have.
    """
    folder = scratch / "code"
    folder.mkdir()
    unpack(archive, folder, limit_bytes)
    told = settings.Settings(home=scratch / "home", snapshot_limit_bytes=limit_bytes)
    return packing.pack(folder, told)


def unpack(archive: Path, folder: Path, limit_bytes: int) -> None:
    """Write the files of the archive below `folder`. Raises as `snapshot` does."""
    import tarfile
    import zipfile

    try:
        _unpack(archive, folder, limit_bytes)
    except (*_DAMAGED, zipfile.BadZipFile, tarfile.TarError) as error:
        said = str(error).partition("\n")[0][:100]
        raise errors.InvalidInput(f"the archive is damaged: {said}", hint=_HINT) from error


def _unpack(archive: Path, folder: Path, limit_bytes: int) -> None:
    from oarlock.data.snapshots import trees

    never = {os.fsdecode(name) for name in trees.NEVER}
    left = limit_bytes
    for count, item in enumerate(_items(archive, limit_bytes), 1):
        if count > MOST_FILES:
            raise errors.TooLarge(
                f"the archive has more than {MOST_FILES:,} files",
                hint="Leave out data and results, or submit with the command line.",
            )
        parts = _parts(item.name)
        if never & set(parts):
            continue
        left = _write(folder.joinpath(*parts), item, left, limit_bytes)


def _items(archive: Path, limit_bytes: int) -> Iterator[Item]:
    import tarfile
    import zipfile

    with archive.open("rb") as file:
        head = file.read(512)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        with zipfile.ZipFile(archive) as zipped:
            yield from _zipped(zipped)
    elif head.startswith(b"\x1f\x8b") or head[257:262] == b"ustar":
        with _opened(archive, zipped=head.startswith(b"\x1f\x8b")) as stream:
            bounded: Any = Bounded(stream, limit_bytes + _HEADERS_BYTES)
            with tarfile.open(fileobj=bounded, mode="r|", errorlevel=2) as tarred:
                yield from _tarred(tarred)
    else:
        raise errors.InvalidInput("the file is neither a zip nor a tar archive", hint="Send a .zip or a .tar.gz.")


def _opened(archive: Path, *, zipped: bool) -> BinaryIO:
    return cast("BinaryIO", gzip.open(archive, "rb")) if zipped else archive.open("rb")


def _tarred(archive: tarfile.TarFile) -> Iterator[Item]:
    for info in archive:
        if info.isdir():
            _parts(info.name)
            continue
        if not info.isreg():
            raise _odd(info.name, "a link" if info.issym() or info.islnk() else "a device")
        content = archive.extractfile(info)
        assert content is not None, "regular files have a content"
        yield Item(info.name, bool(info.mode & 0o100), content)


def _zipped(archive: zipfile.ZipFile) -> Iterator[Item]:
    for info in archive.infolist():
        mode = info.external_attr >> 16
        if info.is_dir():
            _parts(info.filename.rstrip("/"))
            continue
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise _odd(info.filename, "a link" if stat.S_ISLNK(mode) else "a device")
        if info.flag_bits & 1:
            raise errors.InvalidInput("the archive is encrypted", hint="Send it without a password.")
        with archive.open(info) as content:
            yield Item(info.filename, bool(mode & 0o100), content)


def _parts(name: str) -> list[str]:
    """Return the parts of a name below the folder. Raises InvalidInput for a name that could lead elsewhere."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    plain = "\\" not in name and name.isprintable() and len(os.fsencode(name)) <= MOST_NAME_BYTES
    short = all(len(os.fsencode(part)) <= MOST_PART_BYTES for part in parts)
    drive = bool(parts) and len(parts[0]) == 2 and parts[0].endswith(":")
    if name.startswith("/") or ".." in parts or drive or not plain or not short:
        raise errors.InvalidInput(f"the archive has a file with the name {name[:80]!r}, which is refused", hint=_HINT)
    return parts


def _odd(name: str, kind: str) -> errors.InvalidInput:
    return errors.InvalidInput(f"{name[:80]!r} in the archive is {kind}", hint=_HINT)


def _write(path: Path, item: Item, left: int, limit_bytes: int) -> int:
    """Write a file, and return the number of bytes that the others may still have."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise errors.InvalidInput(f"{item.name[:80]!r} stands twice in the archive", hint=_HINT) from error
    with file:
        while block := item.content.read(BLOCK):
            left -= len(block)
            if left < 0:
                raise errors.TooLarge(
                    f"the files of the archive have more than {quantities.size_text(limit_bytes)}",
                    hint="Leave out data and results: list them in .oarlockignore, or fetch data with `data:`.",
                )
            file.write(block)
    if item.executable:
        path.chmod(0o755)
    return left


class Bounded:
    """A stream that ends with TooLarge after `limit_bytes`: a small archive may unpack to any length."""

    def __init__(self, stream: IO[bytes], limit_bytes: int) -> None:
        self._stream = stream
        self._left = limit_bytes

    def read(self, size: int = -1) -> bytes:
        asked = self._left + 1 if size < 0 else min(size, self._left + 1)
        block = self._stream.read(asked)
        self._left -= len(block)
        if self._left < 0:
            raise errors.TooLarge("the archive unpacks to too many bytes", hint="Leave out data and results.")
        return block
