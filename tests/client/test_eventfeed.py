"""The feed of a TensorBoard: each point once, and files that only grow."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing import event_accumulator

from oarlock.client import answers, eventfeed
from oarlock.spec import errors


def series(task: str, name: str, steps: dict[int, float | None]) -> answers.Series:
    points = tuple(answers.Point(step, 100.0 + step, value) for step, value in steps.items())
    return answers.Series(task=task, process=0, name=name, points=points)


def read(folder: Path, name: str) -> list[tuple[int, float]]:
    found = event_accumulator.EventAccumulator(str(folder))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(name)]


class Client:
    """Gives the next answer; in the end the server refuses the token."""

    def __init__(self, *given: tuple[answers.Series, ...] | errors.OarlockError, groups: int | None = None) -> None:
        self.given = list(given)
        self.groups = groups
        self.asked: list[str] = []
        self.asked_groups: list[int] = []

    def new_metrics(self, job: str, after: str, *, points: int, group: int) -> answers.Metrics:
        self.asked.append(after)
        self.asked_groups.append(group)
        if not self.given:
            raise errors.Unauthenticated("The job has ended.", hint="")
        found = self.given.pop(0)
        if isinstance(found, errors.OarlockError):
            raise found
        return answers.Metrics(series=found, after=f"{after}+", groups=self.groups)


def test_each_point_is_written_once(tmp_path: Path) -> None:
    client = Client(
        (series("worker-0", "loss", {1: 3.0, 2: 2.0}), series("worker-1", "loss", {1: 4.0})),
        errors.Unavailable("the server starts again", hint=""),
        (series("worker-0", "loss", {1: 3.0, 2: 2.0, 3: None, 4: 1.0}), series("worker-1", "loss", {1: 4.0, 2: 3.0})),
    )
    (tmp_path / "worker-0.0").mkdir()
    (tmp_path / "worker-0.0" / "events.out.tfevents.1.oarlock").write_bytes(b"of a feed before")
    with pytest.raises(errors.Unauthenticated):
        eventfeed.follow(client, "j-1", tmp_path, sleep=lambda _: None)  # type: ignore[arg-type]  # what it needs of one
    assert read(tmp_path / "worker-0.0", "loss") == [(1, 3.0), (2, 2.0), (4, 1.0)]
    assert read(tmp_path / "worker-1.0", "loss") == [(1, 4.0), (2, 3.0)]
    assert client.asked == ["", "+", "+", "++"]


def test_a_file_only_grows(tmp_path: Path) -> None:
    feed = eventfeed.Feed(tmp_path, 5)
    feed.add((series("worker-0", "loss", {1: 3.0}),))
    (file,) = tmp_path.rglob("events.*")
    before = file.read_bytes()
    feed.add((series("worker-0", "loss", {1: 3.0, 2: 1.0}), series("worker-0", "rate", {1: 0.5})))
    assert file.read_bytes().startswith(before)
    assert read(file.parent, "rate") == [(1, 0.5)]


def test_a_long_history_comes_at_once_and_in_parts(tmp_path: Path) -> None:
    waits: list[float] = []
    client = Client(
        (series("worker-0", "loss", dict.fromkeys(range(eventfeed.POINTS), 1.0)),),
        (series("worker-0", "loss", {eventfeed.POINTS: 2.0}), series("worker-0", "accuracy", {0: 0.5})),
    )
    with pytest.raises(errors.Unauthenticated):
        eventfeed.follow(client, "j-1", tmp_path, sleep=waits.append)  # type: ignore[arg-type]  # what it needs of one
    assert client.asked == ["", "+", "++"]
    assert len(waits) == 1, "the second part is not waited for"
    assert read(tmp_path / "worker-0.0", "accuracy") == [(0, 0.5)]


def test_the_processes_of_a_large_job_come_in_groups(tmp_path: Path) -> None:
    """Those behind the first thousand never reached the TensorBoard. Each group has a cursor of its own."""
    client = Client(
        (series("worker-0", "loss", {1: 3.0}),),
        (series("worker-125", "loss", {1: 4.0}),),
        (series("worker-0", "loss", {2: 2.0}),),
        errors.Unavailable("the server starts again", hint=""),
        (),
        (series("worker-125", "loss", {2: 3.0}),),
        groups=2,
    )
    with pytest.raises(errors.Unauthenticated):
        eventfeed.follow(client, "j-1", tmp_path, sleep=lambda _: None)  # type: ignore[arg-type]  # what it needs of one
    assert read(tmp_path / "worker-0.0", "loss") == [(1, 3.0), (2, 2.0)]
    assert read(tmp_path / "worker-125.0", "loss") == [(1, 4.0), (2, 3.0)]
    assert list(zip(client.asked_groups, client.asked, strict=True)) == [
        *[(0, ""), (1, "")],
        *[(0, "+"), (1, "+")],
        *[(0, "++"), (1, "+")],
        (0, "+++"),
    ]
