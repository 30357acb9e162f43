"""The server is killed while one job gives its place to another: the next one goes on where it was, and both come to
their end. Nothing is freed before it is gone, no job is asked twice, and giving way is not a failure.
"""

from __future__ import annotations

import time

import pytest
from tests.promises import crews
from tests.promises import house as houses

import oarlock
from oarlock.spec import phases

SETTINGS = "[scheduler]\npolicy = 'priority'\nround_s = 1\nmin_runtime_s = 2\nrestart_s = 1\n"
POINTS = (
    "scheduling.before_commit",  # there is a plan to stop it, not yet stored
    "scheduling.after_stops",  # it is asked to stop, its tasks are not told yet
    "guardian.before_release",  # it is gone, and holds its place
    "guardian.after_release",  # its place is free, no job has been launched
)
WISHES = [
    crews.Wish(
        key="low",
        kind="waits",
        argument="1",
        workers=2,
        fields={"priority": 10, "max_restarts": 0, "roles": {"worker": {"count": 2, "cpus": 0.1, "gpus": 1}}},
        attempts=2,
    ),
    crews.Wish(
        key="high",
        kind="sleeps",
        argument="1",
        workers=2,
        fields={"priority": 90, "roles": {"worker": {"count": 2, "cpus": 0.1, "gpus": 1}}},
        attempts=None,  # a server that dies between two of its own steps may have to launch again
    ),
]


@pytest.mark.long
@pytest.mark.parametrize("point", POINTS)
def test_killed_while_one_gives_way_to_another(house: houses.House, point: str) -> None:
    house.home.mkdir(exist_ok=True)
    (house.home / "config.toml").write_text(SETTINGS)
    house.start(virtual_nodes="1", virtual_gpus="2")
    house.until_ready()
    crew = crews.Crew(house, WISHES, users=1)
    crew.start()
    crew.join(crews.CONVERGENCE_S)
    houses.until(lambda: phase(house, crew, "low") is phases.Phase.PROCESSING, 240, "low does not run")
    running_since = time.monotonic()
    house.kill()
    time.sleep(max(0.0, running_since + 2.5 - time.monotonic()))  # it has run for long enough to be stopped for another
    house.start(f"{point}:1", virtual_nodes="1", virtual_gpus="2")
    assert house.until_killed(240), f"{point} was never reached"
    crews.judge_holdings(house)
    house.start(virtual_nodes="1", virtual_gpus="2")
    house.until_ready()
    crews.judge(crew)
    with house.client() as client:
        records = client.events(crew.answered["low"])
        asked = [record.data["intent"] for record in records if record.kind == "intended"]
        assert asked == ["preempt"], "asked once"
        (first, last) = client.job(crew.answered["low"]).attempts
        high = client.job(crew.answered["high"])
    assert first.verdict is not None
    assert first.verdict.message.startswith("preempted by high")
    assert first.ended_at is not None
    assert first.ended_at <= high.attempts[0].started_at < last.started_at


def phase(house: houses.House, crew: crews.Crew, key: str) -> phases.Phase:
    def ask(client: oarlock.Client) -> phases.Phase:
        return client.job(crew.answered[key]).phase

    return house.persist(ask)
