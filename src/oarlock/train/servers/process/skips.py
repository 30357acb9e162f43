"""The steps without an update, which workers in lockstep must pass over together.

A worker that makes an update waits for the gradients of all others. One that does not goes on, and waits for the others
at the end of its step or in its next one. So each tells how many steps it has passed over since the last update.
"""

from __future__ import annotations

from typing import Any

from oarlock.train.servers.wire import frames


class Skips:
    """The newest word of each worker: the version of its weights, the steps that it has passed over since, and whether
    it makes the next update now. The caller holds a lock.
    """

    def __init__(self) -> None:
        self._told: dict[int, tuple[int, int, bool]] = {}

    def compare(self, rank: int, version: int, skipped: Any, *, steps: bool) -> str:
        """Take the word of a worker: the steps that it has passed over since this version, None where it does not tell,
        and whether it `steps` now. Return why training cannot go on, empty where it can. Refused for a wrong word.
        """
        if skipped is None:
            return ""
        if type(skipped) is not int or skipped < 0:
            raise frames.Refused(f"{skipped!r} is not a number of steps")
        self._told[rank] = version, skipped, steps
        alike = [(each, told[1:]) for each, told in self._told.items() if told[0] == version]
        for other, (count, makes) in alike:
            if makes and skipped > count:
                return _why(rank, other)
            if steps and count > skipped:
                return _why(other, rank)
        return ""

    def forget(self, rank: int) -> None:
        """Forget the word of a worker that begins, or repeats the steps since the last update."""
        self._told.pop(rank, None)


def _why(skipper: int, other: int) -> str:
    return (
        f"worker {skipper} has passed over optimizer.step() in a step in which worker {other} has called it, and waits "
        "for the gradients of all. Decide together, as with `if all(world.gather(finite)): optimizer.step()`. A "
        "GradScaler decides on each worker alone: use bfloat16, or strategy allreduce"
    )
