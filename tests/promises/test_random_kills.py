"""Random jobs, and a server that is killed at random moments; agents and ranks too. In the end every job is there,
once, and ended as it had to; nothing else is.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import msgspec
import pytest
from tests.promises import crews
from tests.promises import house as houses

from oarlock.spec import phases

STURDY = {"max_restarts": 50}


class Scale(msgspec.Struct, frozen=True):
    jobs: int
    kills: int  # of the server
    wounds: int  # of agents and ranks
    users: int
    pause_s: float = 0.0  # of a user between two jobs


def random_wishes(dice: random.Random, count: int) -> list[crews.Wish]:
    """Jobs that may be killed have enough restarts; jobs that fail are left alone, so that their end is known."""
    wishes = []
    for number in range(count):
        kind = dice.choice(("true", "fails", "pair", "sleeps", "lines"))
        key = f"{kind}-{number}"
        wish = crews.Wish(key=key, kind="lines", attempts=None, restarts=None, lines=5, named=False)
        match kind:
            case "fails":
                wish = msgspec.structs.replace(
                    wish,
                    kind="fails",
                    argument="3,4",
                    fields={"max_restarts": 1},
                    ends=phases.Phase.FAILED,
                    code=4,
                    attempts=2,
                    restarts=1,
                )
            case "pair":
                wish = msgspec.structs.replace(
                    wish, kind="sleeps", argument=f"{dice.uniform(0, 1):.2f}", workers=2, fields=STURDY
                )
            case "sleeps":
                wish = msgspec.structs.replace(wish, kind="sleeps", argument=f"{dice.uniform(0, 2):.2f}", fields=STURDY)
            case "lines":
                wish = msgspec.structs.replace(wish, kind="talks", argument="1", lines=1000, fields=STURDY)
            case _:
                wish = msgspec.structs.replace(wish, attempts=1, restarts=0)
        wishes.append(wish)
    return wishes


def wound(house: houses.House, crew: crews.Crew, dice: random.Random) -> bool:
    """Kill an agent or a rank of a job that can bear it. False where none runs."""
    sturdy = {job_id for key, job_id in list(crew.answered.items()) if crew.wishes[key].fields == STURDY}
    running = [
        (place, pid)
        for place, (agent, processes) in sorted(house.agents().items())
        if Path(place).parts[-3] in sturdy and not Path(place, "exit.json").exists()
        for pid in (agent, *processes)
        if house.is_of(pid, place)
    ]
    if not running:
        return False
    _, victim = dice.choice(running)
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    return True


def live_through(house: houses.House, seed: int, scale: Scale) -> None:
    print(f"SEED={seed}")
    dice = random.Random(seed)
    wishes = random_wishes(dice, scale.jobs)
    crew = crews.Crew(house, wishes, users=scale.users, patience_s=1800.0, pause_s=scale.pause_s)
    house.start()
    crew.start()
    wounds = 0
    for kill in range(scale.kills):
        if dice.random() < 0.75:  # the others are killed while they start, or soon after
            house.until_ready()
        until = time.monotonic() + dice.uniform(0.2, 3.0)
        patience_s = 60.0 if kill == scale.kills - 1 else 0.0  # a busy machine may have started nothing that can be hit
        while time.monotonic() < until + (0.0 if wounds else patience_s):
            if wounds < scale.wounds * (kill + 1) / scale.kills:
                wounds += wound(house, crew, dice)
            time.sleep(0.1)
        house.kill()
        crews.judge_holdings(house)
        time.sleep(dice.choice((0.0, 0.0, 1.0)))
        house.start()
    house.until_ready()
    crew.join(1800.0)
    print(f"{scale.kills} kills of the server, {wounds} of agents and ranks")
    assert wounds, "no agent or rank was killed"
    crews.judge(crew, within_s=1800.0)  # a busy machine is slow, that is no defect


@pytest.mark.long
def test_twenty_jobs_and_three_kills(house: houses.House) -> None:
    live_through(house, 7, Scale(jobs=20, kills=3, wounds=4, users=3))


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(10))
def test_three_thousand_kills(house: houses.House, turn: int) -> None:
    """Ten houses: 100 kills of the server and 200 of agents and ranks in each. SEED repeats one."""
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**9)) + turn
    live_through(house, seed, Scale(jobs=200, kills=100, wounds=200, users=6, pause_s=8.0))
