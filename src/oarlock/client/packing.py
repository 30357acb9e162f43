"""The code of a job from a working directory: a snapshot to upload, or the directory's own name.

The archive stays in the cache of the home, so an unchanged directory is not packed again.
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
    """Pack a directory.

    Raises TooLarge with the ten largest files, and InvalidInput for a link out of it or an unreadable file.
    """
    from oarlock.data.snapshots import snapshots

    return snapshots.pack(directory, told.home.joinpath(*CACHE), limit_bytes=told.snapshot_limit_bytes, home=told.home)


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The code of a submission. `unrecorded` tells why a job that runs in place has no snapshot.

    `stored` is the digest of a snapshot that the server has already: that of an earlier job.
    `sent_from` is the directory itself, or empty where its name is not valid Unicode.
    """

    snapshot: snapshots.Snapshot | None = None
    stored: str | None = None
    in_place: jobfile.InPlace | None = None
    unrecorded: str = ""
    sent_from: str = ""

    @property
    def digest(self) -> str | None:
        return self.snapshot.digest if self.snapshot is not None else self.stored

    @property
    def left_out(self) -> tuple[jobfile.LeftOut, ...]:
        """The files that the snapshot lacks, folders first, at most as many as a job records."""
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
    """Return the code to submit from `directory` (None: the job needs no code).

    Raises as `pack` does, and InvalidInput where a file that the job names is certainly missing.
    """
    if directory is None and in_place:
        raise errors.InvalidInput(
            "the job has no directory to run in", path="--in-place", hint="Leave out --no-snapshot."
        )
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
    """Return the name of a directory, or an empty text where it is not valid Unicode."""
    try:
        return str(directory).encode().decode()
    except UnicodeEncodeError:
        return ""
