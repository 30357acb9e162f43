"""The packing of a working directory into a content-addressed archive: the code of a job.

The result is a tar.gz whose digest depends only on names, contents and executable bits: the entries are sorted, without
times or owners, under a fixed gzip header. It is written as a stream, so memory does not grow with the directory. A
directory that has not changed is not read again, because its archive is in the cache. The check compares the size,
times and inode of every file, as git's index does.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from oarlock.data import durable
from oarlock.data.snapshots import trees
from oarlock.spec import errors
from oarlock.spec.input import quantities

if TYPE_CHECKING:
    import tarfile

LIMIT_BYTES = 100 * 1000 * 1000
FORMAT = 1
"""A part of every key of the cache. Increase it when the same tree is packed differently."""
LEVEL = 1
"""zlib's fastest level: code becomes nearly as small as with the default, in a third of the time."""
BLOCK = 1 << 20
KEPT_ARCHIVES = 20
SPARED_S = 3600.0
"""An archive used within this time is not evicted, because an upload may be reading it."""
TICK_S = 1.0
"""A file changed less than this time before its reading may change again with the same times."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. `path` is the archive to upload under `digest`; it stays there for at least an hour.

    `bytes` is the archive's length, `count` the number of files, `unpacked_bytes` the sum of their sizes.
    """

    digest: str
    path: Path
    bytes: int
    count: int
    unpacked_bytes: int
    left_out: tuple[trees.LeftOut, ...] = ()
    cached: bool = False


class Packed(msgspec.Struct, frozen=True):
    """An entry of the cache: the archive of a fingerprint."""

    digest: str
    bytes: int
    count: int
    unpacked_bytes: int


def pack(directory: Path, cache: Path, *, limit_bytes: int = LIMIT_BYTES, home: Path | None = None) -> Snapshot:
    """Pack `directory` and keep the archive in `cache`. `home` is Oarlock's own directory, which is never packed.

    `limit_bytes` is the limit for the files' sizes before compression. Errors: TooLarge (`detail` has the ten largest
    files), InvalidInput (see `trees.walk`), Conflict (a file shrank while it was read), Unavailable (the cache is
    full).
    """
    tree = trees.walk(directory, home=home)
    check_size(tree, limit_bytes)
    archives = Archives(cache)
    fingerprint = fingerprinted(tree)
    found = archives.find(fingerprint)
    if found is not None:
        return snapshot(archives, found, tree.left_out, cached=True)
    try:
        packed, left_out, settled = archives.write(tree)
        if settled:
            archives.remember(fingerprint, packed)
    except OSError as error:
        raise durable.unavailable(error, "the snapshot", cache) from error
    return snapshot(archives, packed, left_out, cached=False)


def snapshot(archives: Archives, packed: Packed, left_out: tuple[trees.LeftOut, ...], *, cached: bool) -> Snapshot:
    return Snapshot(
        digest=packed.digest,
        path=archives.path(packed.digest),
        bytes=packed.bytes,
        count=packed.count,
        unpacked_bytes=packed.unpacked_bytes,
        left_out=left_out,
        cached=cached,
    )


def check_size(tree: trees.Tree, limit_bytes: int) -> None:
    if tree.bytes <= limit_bytes:
        return
    largest = [(trees.shown(entry.path), entry.size) for entry in tree.largest(10) if entry.size > 0]
    listing = "\n".join(f"  {quantities.size_text(size):>10}  {path}" for path, size in largest)
    raise errors.TooLarge(
        f"the directory holds {quantities.size_text(tree.bytes)}, over the limit of "
        f"{quantities.size_text(limit_bytes)}; its largest files:\n{listing}",
        hint="list the files that the job does not need in .oarlockignore, fetch data with `data:` in the job file, "
        "or raise the limit",
        detail={"bytes": tree.bytes, "limit_bytes": limit_bytes, "largest": [list(one) for one in largest]},
    )


def fingerprinted(tree: trees.Tree) -> str:
    """Return a digest of the tree's metadata. It shows, without reading files, whether the tree was packed before."""
    digest = hashlib.sha256(b"%d %d\0" % (FORMAT, LEVEL))
    for entry in tree.entries:
        digest.update(
            b"%s\0%d %d %d %d %d\0"
            % (entry.path, entry.size, entry.executable, entry.mtime_ns, entry.ctime_ns, entry.inode)
        )
    return digest.hexdigest()


class Archives:
    """The cache: `DIGEST.tar.gz`, and for each fingerprint a small file that names its digest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, digest: str) -> Path:
        return self._folder / f"{digest.removeprefix('sha256:')}.tar.gz"

    def find(self, fingerprint: str) -> Packed | None:
        try:
            packed = msgspec.json.decode((self._folder / fingerprint).read_bytes(), type=Packed)
            archive = self.path(packed.digest)
            if archive.stat().st_size != packed.bytes:
                return None
            os.utime(archive)
        except (OSError, msgspec.MsgspecError):
            return None
        return packed

    def remember(self, fingerprint: str, packed: Packed) -> None:
        path = self._folder / fingerprint
        draft = durable.temporary(path)
        draft.write_bytes(msgspec.json.encode(packed))
        draft.replace(path)

    def write(self, tree: trees.Tree) -> tuple[Packed, tuple[trees.LeftOut, ...], bool]:
        """Make the archive.

        The last value tells whether the tree did not change, so that its fingerprint is reliable.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._evict()
        draft = durable.temporary(self._folder / "snapshot")
        try:
            with draft.open("xb") as file:
                writer = Writer(file)
                writer.add(tree)
            digest = f"sha256:{writer.out.digest.hexdigest()}"
            packed = Packed(digest, writer.out.bytes, writer.count, writer.unpacked_bytes)
            draft.replace(self.path(packed.digest))
        finally:
            draft.unlink(missing_ok=True)
        return packed, merged(tree.left_out, writer.left_out.summary()), writer.settled

    def _evict(self) -> None:
        """Keep the newest archives. A fingerprint without its archive is useless, and is deleted with the old ones."""
        limit = time.time() - SPARED_S
        aged = sorted((path.stat().st_mtime, path) for path in self._files())
        archives = [path for at, path in aged if path.name.endswith(".tar.gz") and at < limit]
        excess = max(0, sum(path.name.endswith(".tar.gz") for _, path in aged) - KEPT_ARCHIVES)
        for path in archives[:excess]:
            path.unlink(missing_ok=True)
        for at, path in aged:
            if at < limit and not path.name.endswith(".tar.gz") and not self._leads_somewhere(path):
                path.unlink(missing_ok=True)

    def _leads_somewhere(self, path: Path) -> bool:
        try:
            return self.path(msgspec.json.decode(path.read_bytes(), type=Packed).digest).exists()
        except (OSError, msgspec.MsgspecError):
            return False

    def _files(self) -> Iterator[Path]:
        return (path for path in self._folder.iterdir() if path.is_file())


def merged(before: tuple[trees.LeftOut, ...], later: tuple[trees.LeftOut, ...]) -> tuple[trees.LeftOut, ...]:
    found = {one.why: one for one in before}
    for one in later:
        first = found.get(one.why, trees.LeftOut(one.why, 0, ()))
        examples = (first.examples + one.examples)[: trees.EXAMPLES]
        paths = (first.paths + one.paths)[: trees.REMEMBERED]
        found[one.why] = trees.LeftOut(one.why, first.count + one.count, examples, paths)
    return tuple(found[why] for why in sorted(found))


class Counted:
    """A file that computes the digest and the number of the bytes written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


class Writer:
    """The writer of a tree into one archive, as a stream."""

    def __init__(self, file: IO[bytes]) -> None:
        self.out = Counted(file)
        self.left_out = trees.Ledger()
        self.count = 0
        self.unpacked_bytes = 0
        self.settled = True

    def add(self, tree: trees.Tree) -> None:
        import gzip
        import tarfile

        with (
            gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=self.out, mtime=0) as zipped,
            # GNU's format stores names as plain bytes of any length.
            tarfile.open(mode="w|", fileobj=zipped, format=tarfile.GNU_FORMAT, bufsize=BLOCK) as archive,
        ):
            for entry in tree.entries:
                info = tarfile.TarInfo(entry.path.decode("utf-8", "surrogateescape"))
                if entry.is_folder:
                    info.type, info.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(info)
                else:
                    self._file(archive, info, entry)

    def _file(self, archive: tarfile.TarFile, info: tarfile.TarInfo, entry: trees.Entry) -> None:
        """Pack one file. A file that grows meanwhile is packed as it was when it was opened."""
        try:
            # Not blocking: a pipe may have replaced the file meanwhile.
            file = os.fdopen(os.open(entry.real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        except FileNotFoundError:
            self.left_out.add(entry.path, "gone while packing")
            self.settled = False
            return
        except OSError as error:
            raise trees.unreadable(entry.path, error) from error
        with file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise changed(entry)
            info.size, info.mode = found.st_size, 0o755 if entry.executable else 0o644
            try:
                archive.addfile(info, Whole(file, entry))
            except OSError as error:
                raise trees.unreadable(entry.path, error) from error
            self._note(entry, found, os.fstat(file.fileno()))

    def _note(self, entry: trees.Entry, before: os.stat_result, after: os.stat_result) -> None:
        self.count += 1
        self.unpacked_bytes += before.st_size
        expected = (entry.size, entry.mtime_ns, entry.ctime_ns, entry.inode)
        for found in (before, after):
            if (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino) != expected:
                self.settled = False
        if entry.ctime_ns > (time.time() - TICK_S) * 1e9:
            self.settled = False


class Whole:
    """A file that is read exactly to the length in its header."""

    def __init__(self, file: IO[bytes], entry: trees.Entry) -> None:
        self._file = file
        self._entry = entry

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise changed(self._entry)
        return data


def changed(entry: trees.Entry) -> errors.Conflict:
    path = trees.shown(entry.path)
    return errors.Conflict(
        f"{path} was replaced or cut while it was packed",
        hint=f"try again when no program writes to it, or add /{path} to .oarlockignore",
        path=path,
    )
