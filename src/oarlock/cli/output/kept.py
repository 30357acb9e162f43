"""What became of the files that a job left in its working directories, in words: a job in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oarlock.cli.output import terminal
from oarlock.data import sizes
from oarlock.spec import attempts, jobs

A_CACHE = "a cache"
SHOWN = 5

Told = tuple[str, attempts.Kept]
"""A task's name, and what it has kept."""


def lines(job: jobs.Job, *, caches: bool = False) -> list[str]:
    """What the last attempt that left something has kept, and what it has not; `caches` too."""
    attempt = next((one for one in reversed(job.attempts) if any(task.kept for task in one.tasks)), None)
    if attempt is None:
        return []
    told = [(task.name, task.kept) for task in attempt.tasks if task.kept is not None]
    found = [f"{total(told)}: oarlock download {job.name}"] if any(one.files for _, one in told) else []
    return [terminal.clean(line) for line in (*found, *lost(told, caches=caches))]


def total(told: Sequence[Told]) -> str:
    """`2 new files, 1.2 MB`, `1 new and 2 changed files, 3.0 kB`."""
    changed = sum(one.changed for _, one in told)
    fresh = sum(one.files for _, one in told) - changed
    parts = [f"{count:,} {word}" for count, word in ((fresh, "new"), (changed, "changed")) if count]
    noun = "file" if changed + fresh == 1 else "files"
    return f"{' and '.join(parts)} {noun}, {sizes.text(sum(one.bytes for _, one in told))}"


def lost(told: Sequence[Told], *, caches: bool = True) -> Iterator[str]:
    """What was not kept, a line for each reason."""
    groups: dict[str, list[attempts.NotKept]] = {}
    for group in (group for _, one in told for group in one.not_kept if caches or group.why != A_CACHE):
        groups.setdefault(group.why, []).append(group)
    for why, listed in sorted(groups.items()):
        examples = list(dict.fromkeys(example for group in listed for example in group.examples))[:SHOWN]
        count, size = sum(group.count for group in listed), sum(group.bytes for group in listed)
        files = f"{count:,} file{'' if count == 1 else 's'}" + (f", {sizes.text(size)}" if size else "")
        yield f"not kept: {', '.join(examples)} ({why}; {files})"
    for name, one in told:
        if one.removed:
            yield f"removed to make room: what {name} left in {', '.join(one.removed)}"
        if one.failure:
            yield f"not all files of {name} could be kept: {one.failure}"
