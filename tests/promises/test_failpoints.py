"""The server is killed at every named point, while jobs of every kind run; the next server brings all of them to their
end, without a sign that anything had happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Collection

import pytest
from tests.promises import crews
from tests.promises import house as houses

import oarlock
from oarlock.data.checkpoints import checkpoints
from oarlock.spec import errors, phases
from oarlock.spec.process import failpoints

HITS = dict.fromkeys(failpoints.NAMES, 2) | {
    "store.before_commit": 15,
    "store.after_commit": 15,
    "guardian.before_kill": 1,
    "guardian.after_kill": 1,
}
"""In the midst of the workload: a first hit is often of the start."""

OF_OLD_JOBS = ("retention.after_archive", "retention.after_removal")
OF_OLD_CHECKPOINTS = ("retention.after_unlisting",)
OF_PODS = ("kubernetes.before_write",)
"""`tests/e2e/kubernetes/test_pod_faults.py` kills the server there."""
DURING = tuple(name for name in failpoints.NAMES if name not in (*OF_OLD_JOBS, *OF_OLD_CHECKPOINTS, *OF_PODS))
REACHED_S = 240.0
SHORT = ("fails", "halted", "saves")
"""The jobs of `make test`; `make test-long` has one of each kind, and all points."""


def test_killed_while_three_jobs_run(house: houses.House) -> None:
    name = "store.after_commit"
    killed_at(house, f"{name}:{HITS[name]}", SHORT)


@pytest.mark.long
@pytest.mark.parametrize("name", DURING)
def test_killed_while_jobs_run(house: houses.House, name: str) -> None:
    killed_at(house, f"{name}:{HITS[name]}")


def killed_at(house: houses.House, failpoint: str, keys: Collection[str] = ()) -> None:
    house.start(failpoint)
    crew = whole_crew(house, keys=keys)
    reached = house.until_killed(REACHED_S)
    assert reached, f"{failpoint} was never reached"
    crews.judge_holdings(house)
    house.start()
    house.until_ready()
    crew.join(crews.CONVERGENCE_S)
    crews.judge(crew)


def whole_crew(house: houses.House, patience_s: float = crews.CONVERGENCE_S, keys: Collection[str] = ()) -> crews.Crew:
    """Return a crew that has begun: with one job of each kind, or with those of these keys."""
    house.work.joinpath("../letter").write_text("dear reader")
    wishes = [wish for wish in crews.a_few(str(house.work.parent)) if not keys or wish.key in keys]
    crew = crews.Crew(house, wishes, patience_s=patience_s)
    crew.start()
    return crew


@pytest.mark.long
@pytest.mark.parametrize("name", ["store.before_commit", "store.after_commit"])
def test_each_acknowledged_change_is_there(house: houses.House, name: str) -> None:
    """Nothing but submissions, one after another, so that it is one that the server dies at: each job takes the whole
    machine, and the first of them stays.
    """
    spec = {
        "framework": "plain",
        "command": ["sleep", "1000"],
        "roles": {"worker": {"cpus": len(os.sched_getaffinity(0))}},
    }
    house.start(f"{name}:60")
    answered: dict[str, str] = {}
    while not house.until_killed(0):
        house.persist(lambda client: [submit(client, spec, answered) for _ in range(10)])
        assert len(answered) < 500, f"{name} was never reached"
    house.start()
    house.until_ready()
    with house.client() as client:
        assert {job.name: job.id for job in client.jobs(limit=1000)}.items() >= answered.items()


def submit(client: oarlock.Client, spec: dict[str, object], answered: dict[str, str]) -> None:
    name = f"job-{len(answered)}"
    with contextlib.suppress(errors.Unavailable, errors.ServerNotFound):
        answered[name] = client.submit({**spec, "name": name}, directory=None).id


@pytest.mark.long
@pytest.mark.parametrize("name", OF_OLD_JOBS)
def test_killed_while_old_jobs_go_to_the_archive(house: houses.House, name: str) -> None:
    """All that ended are in the archive, and nowhere else; what has not ended stays."""
    ended = [crews.Wish(key=f"old-{number}", kind="lines") for number in range(3)]
    crew = crews.Crew(house, ended)
    house.start()
    crew.start()
    crew.join(REACHED_S)
    crews.judge(crew)
    with house.client() as client:
        spec = {"command": ["sleep", "1000"], "name": "young", "framework": "plain"}
        young = client.submit(spec, directory=None)
        client.halt(young.id)
        houses.until(lambda: client.job(young.id).phase is phases.Phase.HALTED, REACHED_S, "it was not halted")
    house.kill()
    house.start(name, keep_jobs="1ms")
    assert house.until_killed(REACHED_S), f"{name} was never reached"
    house.start(keep_jobs="1ms")
    house.until_ready()
    with house.client() as client:
        names = lambda: [job.name for job in client.jobs()]  # noqa: E731
        houses.until(lambda: names() == ["young"], crews.CONVERGENCE_S, lambda: f"there are still {names()}")
    archived = [json.loads(line) for line in (house.home / "archive.jsonl").read_text().splitlines()]
    assert {job["id"]: job["phase"] for job in archived} == dict.fromkeys(crew.answered.values(), "COMPLETED")
    kept = [path.name for place in ("logs", "checkpoints") for path in house.home.glob(f"{place}/*")]
    assert not set(kept) & set(crew.answered.values()), "something of a forgotten job is left"


@pytest.mark.long
@pytest.mark.parametrize("name", OF_OLD_CHECKPOINTS)
def test_killed_while_old_checkpoints_go(house: houses.House, name: str) -> None:
    """Whatever is offered is there, the newest among it."""
    crew = crews.Crew(house, [crews.Wish(key="saves", kind="saves", argument="4", fields={"checkpoint": {"keep": 2}})])
    house.start()
    crew.start()
    crew.join(REACHED_S)
    crews.judge(crew)
    house.kill()
    house.start(name)
    assert house.until_killed(REACHED_S), f"{name} was never reached"
    house.start()
    house.until_ready()
    (job,) = crew.answered.values()
    with house.client() as client:
        offered = lambda: [one.step for one in client.checkpoints(job)]  # noqa: E731
        houses.until(lambda: offered() == [4, 3], crews.CONVERGENCE_S, lambda: f"offered are {offered()}")
        for one in client.checkpoints(job):
            checkpoints.verify(houses.Path(one.path), manifest_sha256=one.manifest_sha256)


# For hours if wanted


# One task has to be killed: what outlived its agent.
REPEATED = [f"{name}:{hit}" for name in DURING for hit in (1, 2, 5) if hit == 1 or not name.endswith("_kill")]


@pytest.mark.soak
@pytest.mark.parametrize("failpoint", REPEATED)
def test_killed_at_its_first_second_and_fifth_hit(house: houses.House, failpoint: str) -> None:
    killed_at(house, failpoint)


@pytest.mark.soak
def test_killed_at_one_point_after_another(house: houses.House) -> None:
    """SEED repeats one; KILLS says how many. Each server is killed somewhere else before the jobs are done."""
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**9))
    print(f"SEED={seed}")
    dice = random.Random(seed)
    crew: crews.Crew | None = None
    reached = []
    for _ in range(int(os.environ.get("KILLS") or 12)):
        failpoint = f"{dice.choice(DURING)}:{dice.randint(1, 6)}"
        house.start(failpoint)
        crew = crew or whole_crew(house, patience_s=300.0)
        if house.until_killed(10.0):
            reached.append(failpoint)
        else:
            house.kill()
        crews.judge_holdings(house)
    assert reached, "no point was reached"
    house.start()
    house.until_ready()
    assert crew is not None
    crew.join(crews.CONVERGENCE_S)
    crews.judge(crew)
