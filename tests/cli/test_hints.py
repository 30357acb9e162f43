"""Messages that once misled a user: each tells the real state and the next step."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli import typed
from tests.cli.following.test_following import RUN, running, work  # noqa: F401 - a fixture
from tests.cli.verbs.test_looking import Typed, type_  # noqa: F401 - a fixture
from tests.client import live
from tests.data.checkpoints.test_checkpoints import save

from oarlock.cli import main
from oarlock.client.synchronous import clients
from oarlock.spec import jobs, phases


def test_a_job_that_ended_meanwhile_is_not_offered_to_be_canceled(server: live.LiveServer, work: Path) -> None:  # noqa: F811
    """It ended while the question after Ctrl-C was on the screen."""
    with typed.terminal(*RUN, cwd=work) as shown:
        job_id = running(server)
        server.print(job_id, "one\n")
        shown.sees("one")
        shown.press("\x03")
        shown.sees(r"leave it running\?")
        server.end(job_id)
        shown.press("l\n")
        assert shown.ended() == 130
    assert "has ended: COMPLETED." in shown.text
    assert "oarlock metrics" in shown.text
    assert "oarlock cancel" not in shown.text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--index", "7"), ("two has no task with the index 7", "Its tasks: worker-0 to worker-1, ps-0.")),
        (("--role", "ps", "--index", "1"), ("two has no task ps-1", "worker-0 to worker-1, ps-0")),
        (("--role", "chief"), ("two has no task chief", "ps-0")),
        (("--index", "-1"), ("two has no task with the index -1", "ps-0")),
        (("--attempt", "2"), ("two has no attempt 2", "It has one attempt.")),
    ],
)
def test_the_log_of_a_task_that_does_not_exist_is_refused(
    server: live.LiveServer, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: tuple[str, str]
) -> None:
    made = server.submit(name="two", roles={"worker": {"count": 2}, "ps": {}})
    assert main.main(["logs", "two", "--index", "1"]) == 0, "it has not started, and will have this task"
    server.launch(made.id)
    capsys.readouterr()
    assert main.main(["logs", "two", *flags]) == 1
    told = capsys.readouterr().err
    assert all(part in told for part in said), told
    assert main.main(["logs", "two", "--role", "worker", "--index", "1", "--attempt", "1"]) == 0


def test_a_step_without_a_checkpoint_is_answered_with_the_steps(
    server: live.LiveServer,
    work: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = server.submit(name="old")
    for step in (10, 50):
        path = save(Path(server.rig.checkpoints.own) / made.id, step)
        one = jobs.Checkpoint(
            job=made.id, step=step, attempt=1, round=1, path=str(path), manifest_sha256="", bytes=1, at=1.0
        )
        server.do(server.rig.store.write(lambda tx, one=one: tx.add_checkpoint(one)))
    server.launch(made.id)
    server.end(made.id, 1)
    capsys.readouterr()
    assert main.main(["run", "--continue", "old@99", "--dir", str(work), "--detach"]) == 1
    told = capsys.readouterr().err
    assert "--continue: old has no checkpoint of step 99." in told
    assert "50, 10" in told


def test_a_job_is_resumed_as_it_was_found_and_told_of_as_it_was_typed(
    server: live.LiveServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer job of the same name comes between the two requests."""
    found = server.submit(name="one")
    assert main.main(["halt", "one"]) == 0
    listed = clients.Client.checkpoints
    newer = []

    def meanwhile(self: clients.Client, job: str) -> list[jobs.Checkpoint]:
        server.rig.clock.now += 1
        newer.append(server.submit(name="one"))
        self.halt(newer[0].id)
        return listed(self, job)

    monkeypatch.setattr(clients.Client, "checkpoints", meanwhile)
    assert main.main(["resume", "one"]) == 0
    assert len(newer) == 1
    assert [server.job(one.id).phase for one in (found, *newer)] == [phases.Phase.QUEUED, phases.Phase.HALTED]
    one = jobs.Checkpoint(job=newer[0].id, step=1, attempt=1, round=1, path="x", manifest_sha256="", bytes=1, at=1.0)
    server.do(server.rig.store.write(lambda tx: tx.add_checkpoint(one)))
    assert main.main(["cancel", newer[0].id, found.id]) == 0
    capsys.readouterr()
    assert main.main(["resume", "one"]) == 1
    assert "oarlock run --continue one" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_said_in_words(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OARLOCK_SERVER", "http://127.0.0.1:9")
    assert main.main(["ps"]) == 1
    told = capsys.readouterr().err
    assert "no server answers at http://127.0.0.1:9 (Connection refused)" in told
    assert "OARLOCK_SERVER" in told
    assert "Errno" not in told
