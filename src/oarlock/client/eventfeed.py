"""The command `python -m oarlock.client.eventfeed JOB FOLDER`: write a job's metrics into event files as they arrive.

It runs in the pod of a TensorBoard. TensorBoard reads a file on from where it has read: a file only grows. So each
series remembers its last step, and a point of an earlier step that comes late is left out. Each look asks for the
points that have arrived since the last one: neither the history nor a series that rests costs anything, and only a part
of them is in memory.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path

from oarlock.client import answers, eventfiles
from oarlock.client.synchronous import clients
from oarlock.spec import errors

PERIOD_S = 5.0
POINTS = 10_000
"""The points of one answer, about."""

Series = tuple[str, int, str]


class Feed:
    """The event files of one job in `folder`: one for each process of each task. `number` tells them from others."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        self._last: dict[Series, int] = {}

    def add(self, series: tuple[answers.Series, ...]) -> None:
        """Append the points that are new."""
        by_process: dict[tuple[str, int], list[answers.Series]] = {}
        for one in series:
            last = self._last.get((one.task, one.process, one.name), -1)
            points = tuple(point for point in one.points if point.step > last)
            if points:
                self._last[one.task, one.process, one.name] = max(point.step for point in points)
                new = answers.Series(task=one.task, process=one.process, name=one.name, points=points)
                by_process.setdefault((one.task, one.process), []).append(new)
        for (task, process), some in by_process.items():
            place = self._folder / f"{task}.{process}" / f"events.out.tfevents.{self._number}.oarlock"
            place.parent.mkdir(parents=True, exist_ok=True)
            content = eventfiles.encoded(some) if not place.exists() else eventfiles.more(some)
            with place.open("ab") as file:
                file.write(content)


def follow(client: clients.Client, job: str, folder: Path, sleep: Callable[[float], None] = time.sleep) -> None:
    """Follow the metrics until the server refuses them: the job has ended."""
    for old in folder.rglob("events.out.tfevents.*"):  # of a feed before this one: the container was started again
        old.unlink()
    feed = Feed(folder, int(time.time()))
    after = [""]  # by group of processes
    while True:
        more = False
        try:
            for group in itertools.count():
                found = client.new_metrics(job, after[group], points=POINTS, group=group)
                feed.add(found.series)
                after[group] = found.after or after[group]
                more = more or sum(len(one.points) for one in found.series) >= POINTS
                after += [""] * ((found.groups or 1) - len(after))
                if group + 1 >= len(after):
                    break
            if more:
                continue
        except (errors.Unauthenticated, errors.Forbidden, errors.NotFound):
            raise
        except errors.OarlockError as error:  # a server that starts again
            sys.stderr.write(f"{error}\n")
        sleep(PERIOD_S)


def main(arguments: list[str]) -> int:
    job, folder = arguments
    with clients.Client() as client:
        follow(client, job, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
