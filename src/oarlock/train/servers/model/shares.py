"""The division of the data among workers that come and go: which of them take part in a step.

Workers that do not wait for each other are at different steps. So a change holds from a step on that none of them has
begun, and the first server finds that step. In each step all divide the data in the same way, and no two workers take
the same example. With backup workers the other servers hear of it with the gradients of that step at the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from oarlock.train.servers.wire import frames


@dataclass(frozen=True)
class Told:
    """What a worker tells of itself when it opens a server: how many there were when it began, the divisions that it
    knows, and the steps that it has made, 0 for a new one. `began`: the others train already.
    """

    workers: int = 0
    divisions: Any = ()
    steps: int = 0
    began: bool = False

    @classmethod
    def of(cls, fields: Mapping[str, Any], workers: int, *, began: bool) -> Told:
        steps = fields.get("steps", 0)
        if type(steps) is not int or steps < 0:
            raise frames.Refused(f"{steps!r} is not a number of steps")
        return cls(workers, fields.get("shares", ()), steps, began)


class Shares:
    """The divisions: each a step, counted from the first one of the training, and the numbers of the workers that take
    part in the steps after it. The first division is that of step 0.
    """

    def __init__(self) -> None:
        self.divisions: list[tuple[int, tuple[int, ...]]] = []

    @property
    def present(self) -> tuple[int, ...]:
        """The workers of the newest division."""
        return self.divisions[-1][1] if self.divisions else ()

    def begin(self, workers: Iterable[int]) -> None:
        """Divide all steps among these workers."""
        self.divisions = [(0, tuple(sorted(workers)))]

    def change(self, workers: Iterable[int], after: int) -> int:
        """Divide the steps after this one, or after the last change if that is later. Return that step."""
        after = max(after, self.divisions[-1][0] if self.divisions else 0)
        self.divisions.append((after, tuple(sorted(workers))))
        return after

    def take(self, told: Any) -> bool:
        """Take the divisions of `fields` where they are more than those here. Raises Refused unless they are valid."""
        try:
            divisions = [(_number(after), tuple(map(_number, workers))) for after, workers in told]
        except (TypeError, ValueError) as cause:
            raise frames.Refused(f"the shares of the workers are not valid: {cause!r}") from None
        if len(divisions) <= len(self.divisions):
            return False
        self.divisions = divisions
        return True

    def news(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the divisions for a worker that knows fewer of them."""
        return {"shares": self.fields()} if len(self.divisions) > int(known.get("divisions", 0)) else {}

    def fields(self) -> list[Any]:
        return [[after, list(workers)] for after, workers in self.divisions]

    def last_of(self, worker: int) -> int | None:
        """Return the last step of a worker that leaves, None for all others."""
        if worker in self.present:
            return None
        last = None
        for after, workers in reversed(self.divisions):
            if worker in workers:
                return last
            last = after
        return None

    def workers_of(self, step: int) -> tuple[int, ...]:
        """Return the workers that take part in a step."""
        return next((workers for after, workers in reversed(self.divisions) if after < step), ())

    def next_of(self, worker: int, step: int) -> int:
        """Return the first step, this one or a later one, in which the worker takes part; this one if none is known."""
        if worker in self.workers_of(step):
            return step
        return min((after + 1 for after, some in self.divisions if after >= step and worker in some), default=step)

    def of(self, worker: int, step: int) -> tuple[int, int] | None:
        """Return the place of a worker among those of this step, and their number; None before the first step.

        A worker that takes no part passes over the data of the step, so it must know the number too.
        """
        for after, workers in reversed(self.divisions):
            if after < step:
                return sum(other < worker for other in workers), len(workers)
        return None


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of things")
    return value
