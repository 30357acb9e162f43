"""The snapshot of an archive that a browser sends: a zip, a tar or a tar.gz of the working directory.

The archive may be hostile. Its names are keys, never paths: every file lands below one fresh folder, links and devices
are refused, and all bounds hold for the bytes that are really read. The folder is then packed as the command line packs
it, with the same ignore rules and limits.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from oarlock.client import packing, settings
from oarlock.spec import errors
from oarlock.spec.input import quantities

if TYPE_CHECKING:
    from oarlock.data.snapshots import snapshots

MOST_FILES = 20_000
"""The most files that are written, together with their folders. An archive may have twice as many entries."""
MOST_DEPTH = 32
MOST_NAME_BYTES = 1000
MOST_PART_BYTES = 255
BLOCK = 1 << 16
MOST_DIRECTORY_BYTES = 32 << 20
MOST_HEADER_BYTES = 1 << 16
"""The longest name or set of attributes of a tar: `tarfile` has all of it in memory, several times over."""
_HEADERS_BYTES = MOST_FILES * 4096
_ENTRY = b"PK\x01\x02"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
_DAMAGED = (
    zlib.error,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    tarfile.TarError,
    struct.error,
    EOFError,
    IndexError,
    OverflowError,
    ValueError,
    RuntimeError,
)
_HINT = "Pack the folder again, with plain files and folders only."


class Item(NamedTuple):
    """A file of an archive, or a folder without a content. The content is read before the next item is asked for."""

    name: str
    executable: bool = False
    content: IO[bytes] | None = None


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
    try:
        _unpack(archive, folder, limit_bytes)
    except OSError as error:
        if error.errno != errno.EINVAL and not isinstance(error, gzip.BadGzipFile):
            raise  # the disk's fault, and not that of an offset in the archive
        raise _damaged(error) from error
    except _DAMAGED as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> errors.InvalidInput:
    said = str(error).partition("\n")[0][:100]
    return errors.InvalidInput(f"the archive is damaged: {said}", hint=_HINT)


def _unpack(archive: Path, folder: Path, limit_bytes: int) -> None:
    from oarlock.data.snapshots import trees

    never = {os.fsdecode(name) for name in trees.NEVER}
    left, made = limit_bytes, 0
    for count, item in enumerate(_items(archive, limit_bytes), 1):
        if count > 2 * MOST_FILES:
            raise _too_many()
        parts = _parts(item.name)
        if item.content is None or never & set(parts):
            continue
        made += 1 + _make_folders(folder, parts[:-1], MOST_FILES - made - 1)
        left = _write(folder.joinpath(*parts), item, left, limit_bytes)


def _too_many() -> errors.TooLarge:
    return errors.TooLarge(
        f"the archive has more than {MOST_FILES:,} files and folders",
        hint="Leave out data and results, or submit with the command line.",
    )


def _items(archive: Path, limit_bytes: int) -> Iterator[Item]:
    with archive.open("rb") as file:
        head = file.read(512)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        with Checked(io.FileIO(archive)) as checked, zipfile.ZipFile(cast("IO[bytes]", checked)) as zipped:
            yield from _zipped(zipped)
    elif head.startswith(b"\x1f\x8b") or head[257:262] == b"ustar":
        with _opened(archive, zipped=head.startswith(b"\x1f\x8b")) as stream:
            bounded: Any = Bounded(stream, limit_bytes + _HEADERS_BYTES)
            with tarfile.open(fileobj=bounded, mode="r|", errorlevel=2, tarinfo=_Header) as tarred:
                yield from _tarred(tarred)
    else:
        raise errors.InvalidInput("the file is neither a zip nor a tar archive", hint="Send a .zip or a .tar.gz.")


def _opened(archive: Path, *, zipped: bool) -> BinaryIO:
    return cast("BinaryIO", gzip.open(archive, "rb")) if zipped else archive.open("rb")


def _tarred(archive: tarfile.TarFile) -> Iterator[Item]:
    while (info := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # else it keeps the attributes of all entries
        if info.isdir():
            yield Item(info.name)
            continue
        if info.issparse() or not info.isreg():
            links = info.issym() or info.islnk()
            raise _odd(info.name, "a link" if links else "a sparse file" if info.issparse() else "a device")
        content = archive.extractfile(info)
        assert content is not None, "regular files have a content"
        yield Item(info.name, bool(info.mode & 0o100), content)


def _zipped(archive: zipfile.ZipFile) -> Iterator[Item]:
    for info in archive.infolist():
        mode = info.external_attr >> 16
        if info.filename.endswith("/"):  # `is_dir` fails for a name without letters
            yield Item(info.filename.rstrip("/"))
            continue
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise _odd(info.filename, "a link" if stat.S_ISLNK(mode) else "a device")
        if info.flag_bits & 1:
            raise errors.InvalidInput("the archive is encrypted", hint="Send it without a password.")
        if info.compress_type not in _METHODS:
            raise errors.InvalidInput(
                f"{info.filename[:80]!r} is packed by another method than deflate", hint="Pack the folder as usual."
            )
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
    if len(parts) > MOST_DEPTH:
        raise errors.InvalidInput(f"{name[:80]!r} lies in more than {MOST_DEPTH - 1} folders", hint=_HINT)
    return parts


def _odd(name: str, kind: str) -> errors.InvalidInput:
    return errors.InvalidInput(f"{name[:80]!r} in the archive is {kind}", hint=_HINT)


def _make_folders(folder: Path, parts: Sequence[str], most: int) -> int:
    """Make the folders that a file needs, and return the number of new ones. Raises TooLarge for more than `most`."""
    if most < 0:
        raise _too_many()
    made = 0
    for place in range(len(parts)):
        try:
            folder.joinpath(*parts[: place + 1]).mkdir()
        except FileExistsError:
            continue
        except NotADirectoryError as error:
            raise _twice("/".join(parts)) from error
        made += 1
        if made > most:
            raise _too_many()
    return made


def _write(path: Path, item: Item, left: int, limit_bytes: int) -> int:
    """Write a file, and return the number of bytes that the others may still have."""
    assert item.content is not None, "folders are not written"
    try:
        file = path.open("xb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise _twice(item.name) from error
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


def _twice(name: str) -> errors.InvalidInput:
    return errors.InvalidInput(f"{name[:80]!r} stands twice in the archive", hint=_HINT)


class Checked(io.BufferedReader):
    """A zip whose directory is checked before `zipfile` makes an object of each entry: it reads it in one piece."""

    def read(self, size: int | None = -1) -> bytes:
        most = MOST_DIRECTORY_BYTES
        if size is not None and size > most:
            raise _too_many()
        block = super().read(most + 1 if size is None or size < 0 else size)
        if len(block) > most or block.count(_ENTRY) > 2 * MOST_FILES:
            raise _too_many()
        return block


class _Header(tarfile.TarInfo):
    """A header of a tar that is not read where it is longer than names and attributes are."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:  # `tarfile` names this method for subclasses
        kept = sum(map(len, archive.pax_headers.values())) if self.type == tarfile.XGLTYPE else 0
        if self.type in _LONG and self.size + kept > MOST_HEADER_BYTES:
            raise errors.TooLarge("a name or an attribute in the archive is too long", hint=_HINT)
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _odd(self.name, "a sparse file")
        return super()._proc_member(archive)  # type: ignore[misc]

    def _proc_gnusparse_10(self, *_: Any) -> None:
        raise _odd(self.name, "a sparse file")


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
