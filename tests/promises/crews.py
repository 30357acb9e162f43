"""Jobs of every kind, the users that submit and want something of them, and what must become of them in the end."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from typing import Any

import msgspec
from tests.promises import house as houses

import oarlock
from oarlock.client import verbs
from oarlock.data.checkpoints import checkpoints
from oarlock.spec import jobs, phases
from oarlock.store.sql import database

CONVERGENCE_S = 240.0
PYTHON = "python3"
Phase = phases.Phase


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One job to be: what its task does, and its end. `key` makes it one job however often it is submitted."""

    key: str
    kind: str
    argument: str = "0"
    lines: int = 20
    fields: dict[str, Any] = {}
    named: bool = True  # a name is one active job's: without it only the key keeps a second job away
    workers: int = 1
    then: str = ""  # what its owner does once it is PROCESSING: cancel, or halt and resume
    ends: Phase = Phase.COMPLETED
    code: int | None = 0
    attempts: int | None = 1  # None where ranks and agents are killed
    restarts: int | None = 0


def a_few(folder: str) -> list[Wish]:
    """One of each kind. `folder` has a file `letter`."""
    return [
        Wish(key="good", kind="talks", argument="1.5", workers=2, lines=300),
        Wish(
            key="fails",
            kind="fails",
            argument="3,4",
            fields={"max_restarts": 1},
            ends=Phase.FAILED,
            code=4,
            attempts=2,
            restarts=1,
        ),
        Wish(key="halted", kind="stubborn", argument="1", then="halt", attempts=2),
        Wish(key="canceled", kind="waits", argument="9", then="cancel", ends=Phase.CANCELED, code=130),
        Wish(key="orphaned", kind="orphaned", attempts=2),
        Wish(key="saves", kind="saves", argument="3", fields={"checkpoint": {"keep": 1}}),
        Wish(
            key="reads",
            kind="reads",
            argument="data/letter",
            fields={"data": [{"source": f"file://{folder}/letter", "mount": "data/letter"}]},
        ),
    ]


class Crew:
    """Submits wishes and follows each one's wants through, however often the server is lost meanwhile."""

    def __init__(
        self,
        house: houses.House,
        wishes: list[Wish],
        *,
        users: int = 2,
        patience_s: float = CONVERGENCE_S,
        pause_s: float = 0.0,
    ) -> None:
        """`pause_s`: how long a user waits after each submission, so that jobs come as long as servers are killed."""
        self.house = house
        self.pause_s = pause_s
        self.patience_s = patience_s
        self.wishes = {wish.key: wish for wish in wishes}
        self.answered: dict[str, str] = {}
        """The id that was answered for each wish. It must never be lost."""
        self.failures: list[BaseException] = []
        self._left = list(reversed(wishes))
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._guarded, daemon=True) for _ in range(users)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.failures:
            raise self.failures[0]
        assert not any(thread.is_alive() for thread in self._threads), f"still at it after {timeout_s} s"

    @property
    def done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _guarded(self) -> None:
        try:
            mine: list[Wish] = []
            while (wish := self._take()) is not None:
                self._submit(wish)
                mine += [wish] if wish.then else []
                time.sleep(self.pause_s)
            for wish in mine:
                self._want(wish)
        except BaseException as failure:  # noqa: BLE001 - `join` raises it in the test's own thread
            self.failures.append(failure)

    def _take(self) -> Wish | None:
        with self._lock:
            return self._left.pop() if self._left else None

    def _submit(self, wish: Wish) -> None:
        spec: dict[str, Any] = {
            "command": [PYTHON, "-I", "-S", "task.py", wish.kind, wish.argument],
            **({"name": wish.key} if wish.named else {}),
            "framework": "plain",
            "grace": "1s",
            "roles": {"worker": {"count": wish.workers, "cpus": 0.1}},
            "env": {"RECORD": str(self.house.record), "LINES_PRINTED": str(wish.lines)},
            **wish.fields,
        }

        def ask(client: oarlock.Client) -> jobs.Job:
            client.upload(self.house.packed)
            return client.submit_packed(verbs.spec_of(spec), self.house.packed.digest, key=wish.key)

        job = self.house.persist(ask)
        assert self.answered.setdefault(wish.key, job.id) == job.id
        again = self.house.persist(ask)
        assert again.id == job.id, "one key made two jobs"

    def _want(self, wish: Wish) -> None:
        name = self.answered[wish.key]
        self._until(name, Phase.PROCESSING)
        if wish.then == "cancel":
            self.house.persist(lambda client: client.cancel(name))
            return
        self.house.persist(lambda client: client.halt(name))
        self._until(name, Phase.HALTED)
        running = self.house.alive(name)
        assert not running, f"{wish.key} is said to be halted, and {running} are alive"
        self.house.persist(lambda client: client.resume(name))

    def _until(self, name: str, phase: Phase) -> None:
        seen: list[Phase] = []

        def there() -> bool:
            seen.append(self.house.persist(lambda client: client.job(name)).phase)
            return seen[-1] is phase

        houses.until(there, self.patience_s, lambda: f"{name} did not come to be {phase}: it is {seen[-1]}")


# Conditions that hold in the end


def judge(crew: Crew, *, within_s: float = CONVERGENCE_S) -> None:
    """Everything converges, and keeps each promise. The server is up, and is not hurt any more."""
    house = crew.house
    assert crew.answered.keys() == crew.wishes.keys()
    deadline = time.monotonic() + within_s
    with house.client() as client:
        found = at_rest(client, crew, deadline)
        left = lambda: deadline - time.monotonic()  # noqa: E731
        houses.until(lambda: not held(client), left(), lambda: f"still held: {held(client)}")
        houses.until(lambda: not house.alive(), left(), lambda: f"still alive: {house.alive()}")
        houses.until(lambda: not house.task_directories(), left(), lambda: f"left: {house.task_directories()}")
        listed = client.jobs(limit=1000)
        assert Counter(job.id for job in listed) == Counter(crew.answered.values())
        processes = admitted(house)
        for key, job in found.items():
            judge_end(crew.wishes[key], job)
            judge_processes(job, [one for one in processes if one["job"] == job.id])
            judge_barrier(job, [one for one in processes if one["job"] == job.id], client)
            judge_log(crew.wishes[key], job, client)
            judge_history(job, client)
            judge_checkpoints(crew.wishes[key], job, client)


def judge_holdings(house: houses.House) -> None:
    """While no server is there to change it: whatever is alive is held. So nothing was freed before it was gone."""
    alive = house.attempts_alive()
    claims = asyncio.run(read_holdings(f"sqlite:///{house.home / 'oarlock.db'}"))
    assert alive <= claims, f"alive, and not held: {alive - claims}"


async def read_holdings(url: str) -> set[tuple[str, int]]:
    store = await asyncio.to_thread(database.open_store, url)
    try:
        return {(claim.job, claim.attempt) for claim in await store.read(lambda view: view.holdings())}
    finally:
        await store.close()


def at_rest(client: oarlock.Client, crew: Crew, deadline: float) -> dict[str, jobs.Job]:
    found: dict[str, jobs.Job] = {}

    def moving() -> list[str]:
        for key in crew.answered.keys() - found.keys():
            job = client.job(crew.answered[key])
            if job.terminal:
                found[key] = job
        return [f"{key}: {client.job(crew.answered[key])}" for key in sorted(crew.answered.keys() - found.keys())[:3]]

    houses.until(lambda: not moving(), deadline - time.monotonic(), lambda: f"did not come to rest: {moving()}")
    return found


def held(client: oarlock.Client) -> list[Any]:
    return [claim for one in client.nodes() for claim in one.holdings]


def admitted(house: houses.House) -> list[dict[str, Any]]:
    return [json.loads(line) for line in house.record.read_text().splitlines()]


def judge_end(wish: Wish, job: jobs.Job) -> None:
    said = f"{wish.key}: {job}"
    assert job.phase is wish.ends, said
    assert wish.code is None or job.exit_code == wish.code, said
    assert wish.attempts is None or len(job.attempts) == wish.attempts, said
    assert wish.restarts is None or job.restarts == wish.restarts, said


def judge_processes(job: jobs.Job, processes: list[dict[str, Any]]) -> None:
    """One process for each incarnation that the record admitted, after the barrier, and never two lives at once."""
    said = f"{job.name}: {processes}\n{job.attempts}"
    keys = [(one["attempt"], one["role"], one["index"], one["incarnation"]) for one in processes]
    assert len(keys) == len(set(keys)), f"admitted twice: {said}"
    known = {attempt.number: attempt for attempt in job.attempts}
    for one in processes:
        attempt = known[one["attempt"]]
        task = attempt.task(one["role"], one["index"])
        assert task is not None, f"it ran and the record does not know it: {said}"
        assert one["incarnation"] <= task.incarnation, f"it ran and the record does not know it: {said}"
        assert attempt.barrier_at is not None, f"it ran and had not been admitted: {said}"
        assert one["at"] >= attempt.barrier_at, f"it ran before it was admitted: {said}"
        assert not one["alive"], f"it began while another life of it still ran: {said}"
    last = job.attempts[-1]
    if job.phase is Phase.COMPLETED:
        ran = {key[1:3] for key in keys if key[0] == last.number}
        assert ran == {(str(task.role), task.index) for task in last.tasks}, f"it is said to have ended well: {said}"


def judge_barrier(job: jobs.Job, processes: list[dict[str, Any]], client: oarlock.Client) -> None:
    """The whole gang had registered before any of it began."""
    records = [record for record in client.events(job.id) if record.kind == "task_registered"]
    for attempt in job.attempts:
        came = [record.at for record in records if record.data["attempt"] == attempt.number]
        began = [one["at"] for one in processes if one["attempt"] == attempt.number]
        if began:
            assert len(came) == len(attempt.tasks), f"{job.name}: not all registered, and some began"
            assert max(came) <= min(began), f"{job.name}: one began before all had registered"


def judge_log(wish: Wish, job: jobs.Job, client: oarlock.Client) -> None:
    """Every life has its first lines, each once and in order; all of them where it came to its end."""
    lines: dict[tuple[int, str, int], list[str]] = {}
    for line in client.logs(job.id):
        if line.stream == "stdout.0" and line.text.startswith("line"):
            lines.setdefault((line.attempt, line.task, line.incarnation), []).append(line.text)
    every = [f"line {number}" for number in range(wish.lines)]
    for life, seen in lines.items():
        assert seen == every[: len(seen)], f"{job.name} {life}: {seen}"
    for attempt in job.attempts:
        for task in attempt.tasks:
            ended = task.exit is not None and task.exit.signal is None and task.exit.reason == "exited"
            if ended or wish.kind == "orphaned":
                seen = lines.get((attempt.number, task.name, task.incarnation), [])
                said = f"{job.name}/{attempt.number} {task} wrote {len(every)} lines"
                assert seen == every, f"{said}: {seen}"


def judge_history(job: jobs.Job, client: oarlock.Client) -> None:
    """Numbers grow; each phase follows one that it may follow; the end is the last that happened."""
    records = client.events(job.id)
    assert records[0].kind == "submitted"
    assert [record.seq for record in records] == sorted({record.seq for record in records})
    assert [record.version for record in records] == sorted(record.version for record in records)
    changes = [record.data for record in records if record.kind == "phase"]
    before = Phase.QUEUED
    for change in changes:
        assert change["from"] == before, f"{job.name}: {changes}"
        assert Phase(change["to"]) in phases.ALLOWED[before], f"{job.name}: {changes}"
        before = Phase(change["to"])
    assert before is job.phase
    assert records[-1].version == job.version
    began = [record.data["attempt"] for record in records if record.kind == "admitted"]
    ended = [record.data["attempt"] for record in records if record.kind == "released"]
    assert began == ended == [attempt.number for attempt in job.attempts]


def judge_checkpoints(wish: Wish, job: jobs.Job, client: oarlock.Client) -> None:
    """Every offered checkpoint can be restored, and the newest is offered."""
    if wish.kind != "saves":
        return
    offered = client.checkpoints(job.id)
    assert offered, "a checkpoint was saved, and none is offered"
    assert offered[0].step == int(wish.argument)
    for checkpoint in offered:
        checkpoints.verify(houses.Path(checkpoint.path), manifest_sha256=checkpoint.manifest_sha256)
