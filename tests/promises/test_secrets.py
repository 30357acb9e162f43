"""A secret that a job prints, dies with and is asked about is nowhere but where its owner has put it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.promises import crews
from tests.promises import house as houses

from oarlock.spec import phases

SECRET = 'hunter2/"quoted"+and long enough'

TELLS = """
import os, sys, time
secret = os.environ["HUB_TOKEN"]
print("begins with", secret, flush=True)
for _ in range(6000):
    os.path.exists(sys.argv[1]) or time.sleep(0.05)
print("the disk is full of", secret, file=sys.stderr)
raise SystemExit(3)
"""


def text_of(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def test_a_secret_stays_where_it_was_put(house: houses.House) -> None:
    """Not in logs, last lines, the record, the server's log or a process's arguments; nor does it stay in a file."""
    place = house.home / "secrets" / "hub-token"
    place.parent.mkdir(mode=0o700)
    place.write_text(SECRET)
    place.chmod(0o600)
    go = house.work.parent / "go"
    house.start()
    house.until_ready()
    spec = {
        "command": ["python3", "-I", "-S", "-c", TELLS, str(go)],
        "framework": "plain",
        "max_restarts": 0,
        "secrets": [{"name": "hub-token", "as": "env"}],
    }
    with house.client() as client:
        job = client.submit(spec, directory=None).id
        logged = lambda: [line.text for line in client.logs(job)]  # noqa: E731
        houses.until(logged, crews.CONVERGENCE_S, "it said nothing")
        shown = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in house.alive(job)]
        assert shown
        assert not [line for line in shown if SECRET.encode() in line]
        holds = [path for path in (house.home / "tasks").rglob("*") if path.is_file() and SECRET in text_of(path)]
        assert holds, "the task's own output is there as it was printed, while it runs"
        assert {path.stat().st_mode & 0o077 for path in holds} == {0}
        assert {path.parent.stat().st_mode & 0o077 for path in holds} == {0}
        go.touch()
        ended = client.wait(job, timeout_s=crews.CONVERGENCE_S)
        assert (ended.phase, ended.exit_code) == (phases.Phase.FAILED, 3)
        stars = "*" * len(SECRET)
        assert logged() == [f"begins with {stars}", f"the disk is full of {stars}"]
        verdict = ended.attempts[-1].verdict
        assert verdict is not None
        assert f"the disk is full of {stars}" in verdict.last_lines
        houses.until(lambda: not house.task_directories(), crews.CONVERGENCE_S, "its directory is left")
    forms = (SECRET.encode(), json.dumps(SECRET)[1:-1].encode())
    tells = [
        path for path in house.home.rglob("*") if path.is_file() and any(form in path.read_bytes() for form in forms)
    ]
    assert tells == [place]
