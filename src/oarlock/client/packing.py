"""From a working directory to what is submitted of it: a snapshot that can be uploaded, or the directory's own name.

The archive stays in the home's cache, so that a directory that has not changed is not read again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from oarlock.client import scripts, settings
from oarlock.spec import errors, jobfile

if TYPE_CHECKING:
    from oarlock.data.snapshots import snapshots

CACHE = ("cache", "snapshots")
NEVER = "never packed"


def pack(directory: Path, told: settings.Settings) -> snapshots.Snapshot:
    """Raises TooLarge (with the ten largest files), InvalidInput (a link that leaves, an unreadable file)."""
    from oarlock.data.snapshots import snapshots

    return snapshots.pack(directory, told.home.joinpath(*CACHE), limit_bytes=told.snapshot_limit_bytes, home=told.home)


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """What a submission says of a directory. `unrecorded` is why there is no snapshot of a job that runs in place.

    `sent_from` is the directory itself, empty where its name is no text.
    """

    snapshot: snapshots.Snapshot | None = None
    in_place: jobfile.InPlace | None = None
    unrecorded: str = ""
    sent_from: str = ""

    @property
    def digest(self) -> str | None:
        return self.snapshot.digest if self.snapshot is not None else None

    @property
    def left_out(self) -> tuple[jobfile.LeftOut, ...]:
        """What the job will lack, as much of it as a job remembers: folders first, as they say most."""
        if self.snapshot is None or self.in_place is not None:
            return ()
        groups = [group for group in self.snapshot.left_out if group.why != NEVER]
        found = [jobfile.LeftOut(path=path, why=group.why) for group in groups for path in group.paths]
        short = [one for one in found if len(one.path.encode()) <= jobfile.MAX_LEFT_OUT_CHARACTERS]
        if len(short) > jobfile.MAX_LEFT_OUT:
            short = list({one.path: one for one in map(kind_of, short)}.values())
        short.sort(key=lambda one: (not one.path.endswith("/"), one.path.count("/"), one.path))
        return tuple(short[: jobfile.MAX_LEFT_OUT])


def kind_of(one: jobfile.LeftOut) -> jobfile.LeftOut:
    """Return all files of one folder and suffix as one: `data/*.csv`."""
    folder, slash, name = one.path.rpartition("/")
    _, dot, suffix = name.rpartition(".")
    kind = f"{folder}{slash}*{dot}{suffix}" if dot else one.path
    return one if one.path.endswith("/") else msgspec.structs.replace(one, path=kind)


def code_of(directory: Path | None, spec: jobfile.JobSpec, told: settings.Settings, *, in_place: bool = False) -> Code:
    """What is to be submitted of `directory` (None: the job needs no code).

    Raises what `pack` raises, and InvalidInput where a file that the job names is certain to be missing.
    """
    if directory is None and in_place:
        raise errors.InvalidInput("there is no directory to run in", path="--in-place", hint="Leave out --no-snapshot.")
    if directory is None:
        scripts.check_without_code(spec)
        return Code()
    scripts.check_named(spec, directory)
    sent_from = _text(directory.absolute())
    if not in_place:
        snapshot = pack(directory, told)
        if snapshot.left_out:
            scripts.check_kept(spec, directory, told.home)
        return Code(snapshot=snapshot, sent_from=sent_from)
    from oarlock.data.snapshots import directories

    here = directories.identity(directory)
    try:
        return Code(snapshot=pack(directory, told), in_place=here, sent_from=sent_from)
    except (errors.TooLarge, errors.InvalidInput, errors.Conflict) as error:
        unrecorded = error.message.partition("\n")[0].rstrip(":; ")
        return Code(in_place=here, unrecorded=unrecorded, sent_from=sent_from)


def _text(directory: Path) -> str:
    """Its name; empty where that cannot be said in Unicode."""
    try:
        return str(directory).encode().decode()
    except UnicodeEncodeError:
        return ""
