"""Retention: no job is removed that is not in the archive, and never the last good checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.controllers.plant import Killed, MemoryLogs, MemoryMetrics, OfControllers, Phase, Plant
from tests.data.checkpoints.test_checkpoints import flip, save

from oarlock.api.process import checkpoints as api_checkpoints
from oarlock.controllers import leadership, retention
from oarlock.spec import errors, events, jobs
from oarlock.spec.input import validation
from oarlock.spec.process import clocks, failpoints

DAY = 86_400.0
POLICY = retention.Policy(keep_jobs_s=30 * DAY, keep_records=10, keep_cluster_records=3, period_s=600.0)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    for name in failpoints.NAMES:
        failpoints.disarm(name)


class Blobs:
    def __init__(self) -> None:
        self.swept: list[tuple[set[str], float]] = []

    async def sweep(self, keep: set[str], older_than: float) -> int:
        self.swept.append((keep, older_than))
        return 0


class Files:
    """Checkpoints' files: `bad` ones have a digest that does not hold, `removed` ones are not there."""

    def __init__(self) -> None:
        self.bad: set[str] = set()
        self.removed: set[str] = set()
        self.read: list[str] = []
        self.remembered: set[str] = set()
        self.deleted: list[str] = []
        self.forgotten: list[str] = []

    async def good(self, checkpoint: jobs.Checkpoint, *, fresh: bool = False) -> bool:
        if not fresh and checkpoint.path in self.remembered:
            return True
        self.read.append(checkpoint.path)
        self.remembered.discard(checkpoint.path)
        if checkpoint.path in self.bad:
            return False
        self.remembered.add(checkpoint.path)
        return True

    async def known(self, listed: Iterable[jobs.Checkpoint]) -> set[str]:
        return {one.path for one in listed} & self.remembered

    async def gone(self, listed: Iterable[jobs.Checkpoint]) -> set[str]:
        return {one.path for one in listed} & self.removed

    async def delete(self, checkpoint: jobs.Checkpoint) -> None:
        self.deleted.append(checkpoint.path)

    async def forget(self, job_id: str) -> None:
        self.forgotten.append(job_id)


class Shelf:
    def __init__(self, plant: Plant) -> None:
        self.plant = plant
        self.archived: list[dict[str, object]] = []
        self.reports: list[tuple[str, str]] = []
        self.blobs, self.files, self.results = Blobs(), Files(), Files()
        self.logs, self.metrics = MemoryLogs(), MemoryMetrics()
        self.broken = False
        self.retention = self.another()

    def another(self) -> retention.Retention:
        return retention.Retention(
            OfControllers(self.plant.store),  # type: ignore[arg-type]
            self.plant.server.leading,
            self.logs,
            self.metrics,
            self.blobs,  # type: ignore[arg-type]
            self.archive,
            self.files,
            self.results,
            clock=self.plant.clock,
            report=lambda what, error: self.reports.append((what, str(error))),
            policy=POLICY,
        )

    async def archive(self, lines: Sequence[bytes]) -> None:
        if self.broken:
            raise errors.Unavailable("the archive's disk is full", hint="Make room.")
        self.archived += [msgspec.json.decode(line) for line in lines]

    async def later(self, seconds: float) -> None:
        self.plant.now += seconds
        await self.plant.server.leading.tick()
        await self.retention.tick()


@pytest.fixture
async def shelf() -> Shelf:
    plant = Plant()
    await plant.submit()
    await plant.submit()
    await plant.until_rest()
    return Shelf(plant)


async def stored(shelf: Shelf) -> set[str]:
    return set(await shelf.plant.phases())


async def test_a_server_that_does_not_lead_rests_until_it_leads(shelf: Shelf) -> None:
    shelf.plant.now += leadership.TTL_S + 1
    await shelf.retention.tick()
    assert shelf.retention.wake_at() is None
    await shelf.later(0)
    assert shelf.retention.wake_at() == shelf.plant.now + POLICY.period_s


async def test_old_jobs_go_to_the_archive_whole(shelf: Shelf) -> None:
    await shelf.later(29 * DAY)
    young = await shelf.plant.submit()
    assert (shelf.archived, len(await stored(shelf))) == ([], 3)
    await shelf.later(2 * DAY)
    assert await stored(shelf) == {young}
    assert [line["id"] for line in shelf.archived] == ["j-0002", "j-0001"]
    first = msgspec.convert(shelf.archived[1], jobs.Job)
    assert (first.phase, first.attempts[0].verdict.cause) == (Phase.COMPLETED, "succeeded")
    assert shelf.files.forgotten == shelf.results.forgotten == ["j-0002", "j-0001"]
    assert len(await shelf.plant.store.read(lambda view: view.usage())) == 1, "usage stays"


async def test_keys_are_forgotten_a_month_after_their_jobs(shelf: Shelf) -> None:
    store = shelf.plant.store
    spec = validation.decode({"command": "train"})
    job = jobs.Job(id="j-keyed", name="keyed", owner="ann", spec=spec, created_at=shelf.plant.now)
    await store.write(lambda tx: tx.add_job(job, at=1.0, idempotency_key="k"))
    ended = msgspec.structs.replace(job, version=1, phase=Phase.CANCELED, ended_at=shelf.plant.now)
    await store.write(lambda tx: tx.put_job(ended, at=1.0))
    await store.write(lambda tx: tx.remove_jobs(["j-keyed"], at=shelf.plant.now))
    await shelf.later(29 * DAY)
    assert await store.read(lambda view: view.submitted("ann", "k")) == ("j-keyed", "")
    await shelf.later(2 * DAY)
    assert await store.read(lambda view: view.submitted("ann", "k")) is None


async def test_an_archive_that_fails_keeps_the_jobs_and_nothing_else_from_its_work(shelf: Shelf) -> None:
    shelf.broken = True
    await shelf.later(31 * DAY)
    assert len(await stored(shelf)) == 2
    assert shelf.files.forgotten == []
    assert shelf.reports == [("remove_old_jobs", "the archive's disk is full\n  Make room.")]
    assert shelf.blobs.swept
    shelf.broken = False
    await shelf.later(601)
    assert await stored(shelf) == set()


@pytest.mark.parametrize("point", [name for name in failpoints.NAMES if name.startswith("retention.")])
async def test_killed_between_it_is_done_once_more(shelf: Shelf, point: str) -> None:
    await checkpoints(shelf, "j-0001", range(1, 6))

    def kill() -> None:
        failpoints.disarm(point)
        raise Killed(point)

    failpoints.arm(point, kill)
    for _ in range(2):
        try:
            await shelf.later(20 * DAY)
        except Killed:
            shelf.retention = shelf.another()
            await shelf.retention.tick()
    await shelf.later(601)
    assert await stored(shelf) == set()
    assert {line["id"] for line in shelf.archived} == {"j-0001", "j-0002"}


async def test_the_log_is_compacted_to_its_newest_lines(shelf: Shelf) -> None:
    last = await shelf.plant.store.read(lambda view: view.last_seq())
    await shelf.later(601)
    with pytest.raises(errors.Gone):
        await shelf.plant.store.read(lambda view: view.records(0))
    first = await shelf.plant.store.read(lambda view: view.newest_seq(POLICY.keep_records, of_jobs=True))
    kept = await shelf.plant.store.read(lambda view: view.records(first - 1))
    assert kept[-1].seq == last
    assert len([record for record in kept if record.job]) == POLICY.keep_records


async def test_nodes_that_change_all_the_time_push_no_line_of_a_job_out_of_the_log(shelf: Shelf) -> None:
    store = shelf.plant.store
    before = [record for record in await store.read(lambda view: view.records(0)) if record.job]
    for _ in range(50):
        await store.write(lambda tx: tx.tell(events.NODES, ["n0"], at=1.0))
    await shelf.later(601)
    since = before[-POLICY.keep_records].seq - 1
    kept = await store.read(lambda view: view.records(since))
    assert [record for record in kept if record.job][: POLICY.keep_records] == before[-POLICY.keep_records :]
    assert len([record for record in kept if not record.job]) == POLICY.keep_cluster_records


async def test_snapshots_that_a_job_names_stay(shelf: Shelf) -> None:
    spec = validation.decode({"command": "train"})
    job = jobs.Job(id="j-packed", name="packed", owner="ann", spec=spec, created_at=1.0, snapshot="sha256:1")
    await shelf.plant.store.write(lambda tx: tx.add_job(job, at=1.0))
    await shelf.later(601)
    assert shelf.blobs.swept == [({"sha256:1"}, shelf.plant.now - POLICY.snapshot_grace_s)]


async def test_a_clock_set_forward_ages_neither_jobs_nor_keys_nor_snapshots(shelf: Shelf) -> None:
    store = shelf.plant.store
    await store.write(lambda tx: tx.add_job(finished("j-keyed", shelf.plant.now), at=1.0, idempotency_key="k"))
    await store.write(lambda tx: tx.remove_jobs(["j-keyed"], at=shelf.plant.now))
    uploaded_at = shelf.plant.now
    shelf.plant.now += 400 * DAY
    stepped = {"stepped_at": shelf.plant.now, "stepped_s": 400 * DAY}
    anchor = clocks.Anchor(boot="a", ahead_s=0.0, asleep_s=0.0, seen_at=shelf.plant.now, **stepped)
    await store.write(lambda tx: tx.put_clock_anchor(anchor))
    await shelf.later(601)
    assert await stored(shelf) == {"j-0001", "j-0002"}
    assert await store.read(lambda view: view.submitted("ann", "k")) == ("j-keyed", "")
    assert [older_than < uploaded_at for _, older_than in shelf.blobs.swept] == [True]


def finished(job_id: str, at: float) -> jobs.Job:
    spec = validation.decode({"command": "train"})
    return jobs.Job(id=job_id, name=job_id, owner="ann", spec=spec, created_at=at, phase=Phase.CANCELED, ended_at=at)


async def checkpoints(shelf: Shelf, job_id: str, steps: Sequence[int], place: str = "") -> None:
    for step in steps:
        one = jobs.Checkpoint(
            job=job_id, step=step, attempt=1, round=1, path=f"{place}step-{step}", manifest_sha256="", bytes=1, at=step
        )
        await shelf.plant.store.write(lambda tx, one=one: tx.add_checkpoint(one))


async def listed(shelf: Shelf, job_id: str) -> list[int]:
    return [one.step for one in await shelf.plant.store.read(lambda view: view.checkpoints(job_id))]


@pytest.mark.parametrize(
    ("bad", "stay"),
    [
        (set(), [6, 5, 4]),
        ({6, 5}, [6, 5, 4]),
        ({6, 5, 4}, [6, 5, 4, 3]),
        ({6, 5, 4, 3}, [6, 5, 4, 3, 2]),
        ({6, 5, 4, 3, 2, 1}, [6, 5, 4, 3, 2, 1]),
    ],
    ids=["all good", "one left of those kept", "the next is good", "the one after", "none is good"],
)
async def test_the_newest_checkpoints_stay_and_always_a_good_one(shelf: Shelf, bad: set[int], stay: list[int]) -> None:
    await checkpoints(shelf, "j-0001", range(1, 7))
    shelf.files.bad = {f"step-{step}" for step in bad}
    await shelf.later(601)
    assert await listed(shelf, "j-0001") == stay
    assert set(shelf.files.deleted) == {f"step-{step}" for step in range(1, 7) if step not in stay}


async def test_no_checkpoint_is_listed_once_its_deletion_has_begun(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, files without a record are left: a record without files would be offered to an attempt."""
    offered: list[set[int]] = []

    async def delete(checkpoint: jobs.Checkpoint) -> None:
        offered.append({checkpoint.step} & set(await listed(shelf, checkpoint.job)))

    monkeypatch.setattr(shelf.files, "delete", delete)
    await checkpoints(shelf, "j-0001", range(1, 7))
    await shelf.later(601)
    assert offered == [set(), set(), set()]


async def test_the_only_one_that_holds_stays_on_the_disk(shelf: Shelf, tmp_path: Path) -> None:
    """A byte of both newer ones is flipped, and their sizes are as they were."""
    job = await shelf.plant.submit("{checkpoint: {keep: 2}}")
    shelf.files = directories = api_checkpoints.CheckpointDirectories(tmp_path)  # type: ignore[assignment]
    shelf.retention = shelf.another()
    paths = {step: save(tmp_path / job, step) for step in (1, 2, 3, 4)}
    flip(paths[3] / "rank-1.pt")
    flip(paths[4] / "rank-0.pt")
    await checkpoints(shelf, job, list(paths), place=f"{tmp_path}/{job}/attempt-1-round-1-")
    await shelf.later(601)
    directories.close()
    assert {path.name[-1] for path in (tmp_path / job).iterdir()} == {"2", "3", "4"}
    assert await listed(shelf, job) == [4, 3, 2]


async def test_large_checkpoints_are_read_as_seldom_as_can_be(shelf: Shelf) -> None:
    """Two good ones that were read before are enough; where one good one would be left alone it is read again."""
    await checkpoints(shelf, "j-0001", range(1, 5))
    await shelf.later(601)
    assert shelf.files.read == ["step-4", "step-3"]
    await checkpoints(shelf, "j-0001", [5])
    await shelf.later(601)
    assert shelf.files.read == ["step-4", "step-3"]
    assert await listed(shelf, "j-0001") == [5, 4, 3]
    shelf.files.remembered = {"step-5"}
    shelf.files.bad = {"step-4", "step-6"}
    await checkpoints(shelf, "j-0001", [6])
    await shelf.later(601)
    assert shelf.files.read[2:] == ["step-6", "step-4", "step-5"], "it is the last good one of those that stay"
    assert await listed(shelf, "j-0001") == [6, 5, 4]


async def test_one_that_was_removed_is_not_listed_any_more(shelf: Shelf) -> None:
    await checkpoints(shelf, "j-0001", range(1, 4))
    shelf.files.removed = {"step-2"}
    await shelf.later(601)
    assert (await listed(shelf, "j-0001"), shelf.files.deleted, shelf.files.read) == ([3, 1], [], [])


async def test_those_in_an_object_store_are_their_agents_to_remove(shelf: Shelf) -> None:
    """The server cannot read them: it neither believes nor forgets them."""
    await checkpoints(shelf, "j-0001", range(1, 7), place="s3://bucket/")
    await shelf.later(601)
    assert (await listed(shelf, "j-0001"), shelf.files.read) == ([6, 5, 4, 3, 2, 1], [])


async def test_only_the_leader_does_any_of_it(shelf: Shelf) -> None:
    shelf.plant.now += 31 * DAY
    await shelf.retention.tick()
    assert shelf.archived == []
    assert shelf.blobs.swept == []
