"""The files that a job left in its working directories, and those that could not be kept, in lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oarlock.display import amounts
from oarlock.spec import attempts, jobs
from oarlock.spec.input import quantities

A_CACHE = "a cache"
SHOWN = 5

Told = tuple[str, attempts.Kept]
"""The name of a task, and the files that it has kept."""


def lines(job: jobs.Job, called: str = "", *, caches: bool = False) -> list[str]:
    """Return the lines of the last attempt that left files; those about caches only with `caches`.

    The command calls the job `called`, by default by its name.
    """
    attempt = next((one for one in reversed(job.attempts) if any(task.kept for task in one.tasks)), None)
    if attempt is None:
        return []
    told = [(task.name, task.kept) for task in attempt.tasks if task.kept is not None]
    found = [f"{total(told)}: {fetch(called or job.name)}"] if any(one.files for _, one in told) else []
    return [*found, *lost(told, caches=caches)]


def fetch(job: str) -> str:
    """Return the command that fetches the files of a job, which is named so."""
    return f"oarlock download {job}"


def total(told: Sequence[Told]) -> str:
    """Return `2 new files, 1.2 MB` or `1 new and 2 changed files, 3.0 kB`."""
    changed = sum(one.changed for _, one in told)
    fresh = sum(one.files for _, one in told) - changed
    parts = [f"{count:,} {word}" for count, word in ((fresh, "new"), (changed, "changed")) if count]
    noun = "file" if changed + fresh == 1 else "files"
    return f"{' and '.join(parts)} {noun}, {quantities.size_text(sum(one.bytes for _, one in told))}"


def lost(told: Sequence[Told], *, caches: bool = True) -> Iterator[str]:
    """Yield one line for each reason why files were not kept."""
    groups: dict[str, list[attempts.NotKept]] = {}
    for group in (group for _, one in told for group in one.not_kept if caches or group.why != A_CACHE):
        groups.setdefault(group.why, []).append(group)
    for why, listed in sorted(groups.items()):
        examples = list(dict.fromkeys(example for group in listed for example in group.examples))[:SHOWN]
        size = sum(group.bytes for group in listed)
        files = amounts.counted(sum(group.count for group in listed), "file")
        yield f"not kept: {', '.join(examples)} ({why}; {files}{f', {quantities.size_text(size)}' if size else ''})"
    for name, one in told:
        if one.removed:
            yield f"removed to make room: the files of {name} in {', '.join(one.removed)}"
        if one.failure:
            yield f"not all files of {name} could be kept: {one.failure}"
