"""The unpacking of a code snapshot: a tar.gz of regular files and directories, and nothing else.

The reader is our own, because tarfile's filter has been bypassed more than once. It refuses everything else: links,
devices, sparse files, absolute paths, `..`, a path that leads through a file, two entries of one name, and more bytes
or entries than the limits. It streams: neither the archive nor a file is ever held in memory.
"""

from __future__ import annotations

import os
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

BLOCK = 512
LIMIT_BYTES = 8 << 30
LIMIT_ENTRIES = 200_000
LIMIT_HEADER_BYTES = 64 << 10
LIMIT_PATH_BYTES = 4096
LIMIT_DEPTH = 100
EXECUTABLE = 0o111


class Refused(Exception):
    """The archive is damaged, or holds an entry that a snapshot must not hold."""


class Entry:
    """One header: `kind` is the tar type flag."""

    def __init__(self, kind: bytes, path: str, size: int, mode: int) -> None:
        self.kind, self.path, self.size, self.mode = kind, path, size, mode


def unpack(archive: str, destination: str, limit_bytes: int = LIMIT_BYTES, limit_entries: int = LIMIT_ENTRIES) -> None:
    """Unpack the file `archive` into the directory `destination`, which must not exist yet."""
    os.mkdir(destination, 0o700)
    seen: dict[tuple[str, ...], bool] = {(): True}  # parts -> is a directory
    with open(archive, "rb") as file:
        source = _Source(file, limit_bytes)
        while True:
            entry = _next_entry(source)
            if entry is None:
                return
            if len(seen) > limit_entries:
                raise Refused(f"the archive has more than {limit_entries} entries")
            _place(source, entry, destination, seen)


def _place(source: _Source, entry: Entry, destination: str, seen: dict[tuple[str, ...], bool]) -> None:
    parts = _parts(entry.path)
    is_directory = entry.kind == b"5"
    if is_directory and seen.get(parts):
        return
    if parts in seen:
        raise Refused(f"two entries are called {entry.path!r}")
    for depth in range(1, len(parts)):
        parent = parts[:depth]
        if not seen.setdefault(parent, True):
            raise Refused(f"{entry.path!r} leads through a file")
        _make_directory(os.path.join(destination, *parent))
    seen[parts] = is_directory
    path = os.path.join(destination, *parts)
    if is_directory:
        _make_directory(path)
    else:
        _write_file(source, path, entry)


def _write_file(source: _Source, path: str, entry: Entry) -> None:
    mode = 0o755 if entry.mode & EXECUTABLE else 0o644
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:
        left = entry.size
        while left:
            data = source.read(min(left, 1 << 18))
            file.write(data)
            left -= len(data)
    source.skip(-entry.size % BLOCK)


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        if os.path.islink(path) or not os.path.isdir(path):
            raise Refused(f"{path!r} is in the way") from None


def _parts(path: str) -> tuple[str, ...]:
    """Return the path's parts, or raise Refused. tar itself writes a leading `./` and a trailing `/`."""
    if path.startswith("/") or "\0" in path or "\\" in path or len(path.encode("utf-8", "replace")) > LIMIT_PATH_BYTES:
        raise Refused(f"{path!r} is not a path inside the snapshot")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts or len(parts) > LIMIT_DEPTH:
        raise Refused(f"{path!r} is not a path inside the snapshot")
    if any(len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts):
        raise Refused(f"a name in {path[:300]!r} is too long")
    return parts


def _next_entry(source: _Source) -> Entry | None:
    """Return the next file or directory, after its extended headers; None at the archive's end."""
    extended: dict[str, str] = {}
    while True:
        block = source.read(BLOCK, may_end=True)
        if not block or block.count(b"\0") == BLOCK:
            return None
        kind, path, size, mode = _header(block)
        if kind == b"x":
            extended.update(_pax(_header_data(source, size)))
        elif kind == b"g":
            _header_data(source, size)  # comments of the whole archive, such as git's
        elif kind == b"L":
            extended["path"] = _text(_header_data(source, size).rstrip(b"\0"))
        elif kind in (b"0", b"\0", b"5"):
            if any(name.startswith("GNU.sparse") for name in extended):
                raise Refused(f"{path!r} is a sparse file")
            size = _decimal(extended["size"]) if "size" in extended else size
            path = extended.get("path", path)
            directory = kind == b"5" or path.endswith("/")
            if directory and size:
                raise Refused(f"the directory {path!r} has content")
            return Entry(b"5" if directory else b"0", path, size, mode)
        else:
            raise Refused(f"{path!r} is neither a regular file nor a directory (tar type {kind!r})")


def _header(block: bytes) -> tuple[bytes, str, int, int]:
    total = sum(block) - sum(block[148:156]) + 8 * 32
    if _octal(block[148:156]) != total:
        raise Refused("a header's checksum is wrong: this is not a tar archive, or it is damaged")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0":
        prefix = block[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    return block[156:157], _text(name), _octal(block[124:136]), _octal(block[100:108])


def _header_data(source: _Source, size: int) -> bytes:
    if size > LIMIT_HEADER_BYTES:
        raise Refused("an extended header is too long")
    data = source.read(size) if size else b""
    source.skip(-size % BLOCK)
    return data


def _pax(data: bytes) -> dict[str, str]:
    """Return the records `LENGTH NAME=VALUE`. Each ends with a newline, and LENGTH counts the whole record."""
    found = {}
    while data:
        digits = data.split(b" ", 1)[0]
        length = _decimal(_text(digits[:8]))
        record = data[len(digits) + 1 : length]
        if length <= len(digits) + 2 or length > len(data) or not record.endswith(b"\n") or b"=" not in record:
            raise Refused("an extended header is damaged")
        name, _, value = record[:-1].partition(b"=")
        found[_text(name)] = _text(value)
        data = data[length:]
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _decimal(text: str) -> int:
    if not text.isdigit() or len(text) > 18:
        raise Refused(f"a number in the archive is damaged: {text[:40]!r}")
    return int(text)


def _octal(field: bytes) -> int:
    if field[:1] == b"\x80":  # base 256, for sizes from 8 GiB on, which exceed the limit anyway
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0")
    if any(digit not in b"01234567" for digit in text):
        raise Refused(f"a number in the archive is damaged: {field!r}")
    return int(text or b"0", 8)


class _Source:
    """The decompressed bytes, counted, so that a decompression bomb is noticed early."""

    def __init__(self, file: BinaryIO, limit_bytes: int) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._buffer = b""
        self._left = limit_bytes
        self._limit = limit_bytes

    def read(self, count: int, may_end: bool = False) -> bytes:
        """Return exactly `count` bytes, or none if the archive ends here and may end."""
        parts: list[bytes] = []
        missing = count
        while missing:
            if not self._buffer and not self._more():
                if may_end and missing == count:
                    return b""
                raise Refused("the archive ends early")
            part, self._buffer = self._buffer[:missing], self._buffer[missing:]
            missing -= len(part)
            parts.append(part)
        return b"".join(parts)

    def skip(self, count: int) -> None:
        if count:
            self.read(count)

    def _more(self) -> bool:
        """Inflate another piece; return False at the end of the compressed stream."""
        while not self._buffer and not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._file.read(1 << 16)
            try:
                self._buffer = self._inflate.decompress(packed, 1 << 18) if packed else self._inflate.flush()
            except zlib.error as error:
                raise Refused(f"the archive is not gzip, or it is damaged: {error}") from error
            self._left -= len(self._buffer)
            if self._left < 0:
                raise Refused(f"the archive unfolds to more than {self._limit} bytes")
            if not packed and not self._buffer:
                return False
        return bool(self._buffer)
