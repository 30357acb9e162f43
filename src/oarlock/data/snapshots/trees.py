"""The choice of the files of a working directory that go into a snapshot, by ignore files, kind and place.

The result is the folders and files in a fixed order with their `stat`, and those left out, with the reason. No content
is read. Names are bytes, because a file system may hold names that are not UTF-8. A link inside the directory is packed
as its target, because archives hold only regular files and folders. A link that leaves the directory is refused,
because on the job's machine it would lead to another file or to none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from oarlock.data.snapshots import ignores
from oarlock.spec import errors

MAX_ENTRIES = 500_000
NEVER = frozenset({b".git", b".hg", b".svn", b"__pycache__", b"node_modules", b".oarlock"})
IGNORE_FILES = (b".oarlockignore", b".gitignore")
"""The ignore files. The rules of the first win over those of the second, in any folder."""
IGNORE_BYTES = 1 << 20
EXAMPLES = 3
REMEMBERED = 200


class Entry(NamedTuple):
    """A folder (`size` -1) or a file to pack. `path` is relative to the directory; `real` is the path to open."""

    path: bytes
    real: bytes
    size: int
    executable: bool
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def is_folder(self) -> bool:
        return self.size < 0


class LeftOut(msgspec.Struct, frozen=True):
    """The number of files or whole folders left out for one reason, and the first of them. Folders end in `/`.

    `paths` are those that a job's record keeps.
    """

    why: str
    count: int
    examples: tuple[str, ...]
    paths: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f" and {self.count - len(self.examples):,} more" if self.count > len(self.examples) else ""
        return f"{', '.join(self.examples)}{more} ({self.why})"


class Tree(msgspec.Struct, frozen=True):
    """The chosen files. `entries` are sorted by path, which is the order of packing."""

    entries: list[Entry]
    left_out: tuple[LeftOut, ...]

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.entries if not entry.is_folder)

    @property
    def files(self) -> int:
        return sum(not entry.is_folder for entry in self.entries)

    def largest(self, count: int) -> list[Entry]:
        return sorted(self.entries, key=lambda entry: (-entry.size, entry.path))[:count]


def shown(path: bytes) -> str:
    """Return a path for people, with bytes that are not UTF-8 and control characters escaped."""
    text = path.decode(errors="backslashreplace")
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class Ledger:
    """The files and folders left out, by reason."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, list[str]]] = {}

    def add(self, path: bytes, why: str) -> None:
        count, examples = self._found.get(why, (0, []))
        if len(examples) < REMEMBERED:
            examples.append(shown(path))
        self._found[why] = (count + 1, examples)

    def summary(self) -> tuple[LeftOut, ...]:
        return tuple(
            LeftOut(why, count, tuple(paths[:EXAMPLES]), tuple(paths))
            for why, (count, paths) in sorted(self._found.items())
        )


class Scope(NamedTuple):
    """An ignore file in force. `skip` is the length of the prefix that paths lose before its rules apply."""

    prefix: bytes
    skip: int
    rules: ignores.Rules


def walk(directory: Path, *, home: Path | None = None) -> Tree:
    """Return the tree of `directory`. `home`, Oarlock's own directory, is left out.

    InvalidInput, with the path, for: not a directory, a link that leaves it or has no end, a file that cannot be read,
    more than MAX_ENTRIES entries.
    """
    root = os.fsencode(directory.resolve())
    if not directory.is_dir():
        raise errors.InvalidInput(f"{directory} is not a directory", hint="name the directory of the code")
    walker = Walker(root, os.path.realpath(os.fsencode(home)) if home is not None else None)
    entries = sorted(walker.walk())
    return Tree(entries, walker.left_out.summary())


class Walker:
    def __init__(self, root: bytes, home: bytes | None) -> None:
        self.root = root
        self.home = home
        self.left_out = Ledger()
        self.found = 0

    def walk(self) -> Iterator[Entry]:
        scopes: dict[bytes, tuple[Scope, ...]] = {name: self._above(name) for name in IGNORE_FILES}
        pending: list[tuple[bytes, bytes, dict[bytes, tuple[Scope, ...]], tuple[bytes, ...]]] = [
            (b"", self.root, scopes, (self.root,))
        ]
        while pending:
            prefix, real, scopes, chain = pending.pop()
            children = self._children(prefix, real)
            scopes = {name: self._rules(name, prefix, children, scopes[name]) for name in IGNORE_FILES}
            for child in children.values():
                path = prefix + child.name
                entry = self._entry(path, child, scopes)
                if entry is None:
                    continue
                yield entry
                self._count()
                if entry.is_folder:
                    self._check_end(path, entry.real, chain)
                    pending.append((path + b"/", entry.real, scopes, (*chain, entry.real)))

    def _above(self, name: bytes) -> tuple[Scope, ...]:
        """Return the rules of the folders between the repository's root and the directory, which apply too."""
        above = []
        folder = self.root
        while not os.path.lexists(os.path.join(folder, b".git")):
            parent = os.path.dirname(folder)
            if parent == folder:
                return ()
            folder = parent
            try:
                rules = ignores.Rules(read_rules(os.path.join(folder, name)))
            except OSError:
                continue
            above.append(Scope(self.root[len(folder.rstrip(b"/")) + 1 :] + b"/", 0, rules))
        return tuple(above)

    def _children(self, prefix: bytes, real: bytes) -> dict[bytes, os.DirEntry[bytes]]:
        try:
            with os.scandir(real) as found:
                return {child.name: child for child in sorted(found, key=lambda child: child.name)}
        except OSError as error:
            raise unreadable(prefix.rstrip(b"/") or b".", error) from error

    def _rules(
        self, name: bytes, prefix: bytes, children: dict[bytes, os.DirEntry[bytes]], outer: tuple[Scope, ...]
    ) -> tuple[Scope, ...]:
        child = children.get(name)
        if child is None or not child.is_file(follow_symlinks=False):
            return outer
        try:
            rules = ignores.Rules(read_rules(child.path))
        except OSError as error:
            raise unreadable(prefix + name, error) from error
        return (Scope(b"", len(prefix), rules), *outer) if rules else outer

    def _entry(self, path: bytes, child: os.DirEntry[bytes], scopes: dict[bytes, tuple[Scope, ...]]) -> Entry | None:
        """Return the entry to pack for this name; None, with the reason noted, if it is left out."""
        if child.name in NEVER:
            self.left_out.add(path + (b"/" if child.is_dir(follow_symlinks=False) else b""), "never packed")
            return None
        linked = child.is_symlink()
        folder = child.is_dir(follow_symlinks=False)
        why = self._ignored(path, child.name, folder, scopes)
        if why:
            self.left_out.add(path + b"/" if folder else path, why)
            return None
        real = child.path
        if linked:
            real = os.path.realpath(child.path)
            if not os.path.exists(real):
                self.left_out.add(path, "a link to nothing")
                return None
            self._check_inside(path, real)
        try:
            found = os.stat(real) if linked else child.stat(follow_symlinks=False)
        except FileNotFoundError:
            self.left_out.add(path, "gone while packing")
            return None
        except OSError as error:
            raise unreadable(path, error) from error
        if stat.S_ISDIR(found.st_mode):
            return self._folder(path, real, found)
        if not stat.S_ISREG(found.st_mode):
            self.left_out.add(path, "neither a file nor a folder")
            return None
        executable = bool(found.st_mode & stat.S_IXUSR)
        return Entry(path, real, found.st_size, executable, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)

    def _folder(self, path: bytes, real: bytes, found: os.stat_result) -> Entry | None:
        if real == self.home:
            self.left_out.add(path + b"/", "never packed")
            return None
        if os.path.lexists(real + b"/pyvenv.cfg"):
            self.left_out.add(path + b"/", "a virtual environment")
            return None
        return Entry(path, real, -1, False, 0, 0, found.st_ino)

    def _ignored(self, path: bytes, name: bytes, folder: bool, scopes: dict[bytes, tuple[Scope, ...]]) -> str:
        tail = b"/" if folder else b""
        for file in IGNORE_FILES:
            for scope in scopes[file]:
                verdict = scope.rules.ignored(scope.prefix + path[scope.skip :] + tail, name + tail)
                if verdict:
                    return os.fsdecode(file)
                if verdict is False:
                    return ""
        return ""

    def _check_inside(self, path: bytes, real: bytes) -> None:
        if real != self.root and not real.startswith(self.root.rstrip(b"/") + b"/"):
            raise errors.InvalidInput(
                f"{shown(path)} is a link to {shown(real)}, outside of the packed directory",
                hint="copy the target here, name it under `data:` in the job file, "
                f"or add /{shown(path)} to .oarlockignore",
                path=shown(path),
            )

    def _check_end(self, path: bytes, real: bytes, chain: tuple[bytes, ...]) -> None:
        if real in chain:
            raise errors.InvalidInput(
                f"{shown(path)} is a link to a folder that contains it: following it has no end",
                hint=f"remove the link, or add /{shown(path)} to .oarlockignore",
                path=shown(path),
            )

    def _count(self) -> None:
        self.found += 1
        if self.found > MAX_ENTRIES:
            raise errors.InvalidInput(
                f"{shown(self.root)} has more than {MAX_ENTRIES:,} files and folders",
                hint="run from the directory of the code, or list the files that are not code in .oarlockignore",
            )


def read_rules(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read(IGNORE_BYTES)


def unreadable(path: bytes, error: OSError) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{shown(path)} cannot be read: {error.strerror}",
        hint=f"make it readable (chmod u+r), or add /{shown(path)} to .oarlockignore",
        path=shown(path),
    )
