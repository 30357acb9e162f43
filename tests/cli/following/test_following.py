"""`run` and `logs -f` on real terminals and pipes: output, the live line, Ctrl-C, a lost server, exit codes."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli import typed
from tests.client import live

from oarlock.spec import attempts, events, intents, phases

RUN = ("run", "--max-restarts", "0", "--", "python", "train.py")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    (place / "train.py").write_text("print(1)\n")
    return place


def submitted(server: live.LiveServer) -> str:
    def newest() -> str:
        found = server.jobs()
        return found[0].id if found else ""

    return typed.until(newest)


def running(server: live.LiveServer) -> str:
    job_id = submitted(server)
    server.launch(job_id)
    server.process(job_id)
    return job_id


def piped(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*typed.COMMAND, *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_stdout_is_the_output_and_the_exit_code_is_the_job_s(server: live.LiveServer, work: Path) -> None:
    with piped(*RUN, cwd=work) as process:
        job_id = running(server)
        server.print(job_id, "one\n\x1b[31mtwo\x1b[0m\nno end")
        server.end(job_id, 3)
        out, err = process.communicate(timeout=typed.TIMEOUT_S)
    assert out == "one\n\x1b[31mtwo\x1b[0m\nno end\n", "a pipe gets the output as it was printed"
    assert process.returncode == server.job(job_id).exit_code
    assert process.returncode != 0
    assert "FAILED" in err
    assert "blame" in err
    assert err.count("  oarlock ") == 3, "the next three commands to try"
    assert "\x1b" not in err
    assert "\r" not in err


def test_the_stderr_of_a_task_comes_on_stderr(server: live.LiveServer, work: Path) -> None:
    """As if the program ran here; the log, which is another verb's result, is whole on stdout."""
    with piped(*RUN, cwd=work) as process:
        job_id = running(server)
        server.print(job_id, "result\nresult without an end")
        server.print(job_id, "Traceback\nKeyError: 'lr'\nno end", stream="stderr.0")
        server.end(job_id, 1, last_lines=("Traceback", "KeyError: 'lr'"))
        out, err = process.communicate(timeout=typed.TIMEOUT_S)
    assert out == "result\nresult without an end\n"
    assert err.count("Traceback\nKeyError: 'lr'\n") == 1
    assert err.count("KeyError: 'lr'") == 1, "the blame does not repeat the line above"
    assert "no end\n" in err
    for verb in (("logs",), ("logs", "-f")):
        log = typed.run(*verb, job_id)
        assert sorted(log.stdout.splitlines()) == sorted(
            ["result", "result without an end", "Traceback", "KeyError: 'lr'", "no end"]
        )


def test_a_frozen_job_is_called_so(server: live.LiveServer, work: Path) -> None:
    with piped("run", "--freeze", "1h", *RUN[1:], cwd=work) as process:
        job_id = running(server)
        assert process.stderr is not None
        _read_until(process.stderr.readline, "PROCESSING")
        _freeze(server, job_id)
        _read_until(process.stderr.readline, "FROZEN")
        _read_until(process.stderr.readline, "Its place is kept until")
        process.send_signal(signal.SIGINT)
        typed.until(lambda: server.job(job_id).intent is intents.Intent.CANCEL)
        server.release(job_id)
        _, err = process.communicate(timeout=typed.TIMEOUT_S)
    assert "PROCESSING" not in err


def test_a_progress_bar_reaches_a_pipe_while_the_job_runs(server: live.LiveServer, work: Path) -> None:
    with piped(*RUN, cwd=work) as process:
        job_id = running(server)
        assert process.stderr is not None
        _read_until(process.stderr.readline, "PROCESSING")
        server.print(job_id, "\r 10%|#    |", stream="stderr.0")
        assert process.stderr.readline() == " 10%|#    |\n"
        server.print(job_id, "\r 20%|##   |\n", stream="stderr.0")
        server.end(job_id)
        out, err = process.communicate(timeout=typed.TIMEOUT_S)
    assert out == ""
    assert err.startswith(" 20%|##   |\n"), "no line is shown again"


def test_several_tasks_are_named(server: live.LiveServer, work: Path) -> None:
    with piped("run", "--workers", "2", "--max-restarts", "0", "--", "python", "train.py", cwd=work) as process:
        job_id = running(server)
        server.print(job_id, "a\n", index=0)
        server.print(job_id, "b\n", index=1)
        server.end(job_id)
        out, _ = process.communicate(timeout=typed.TIMEOUT_S)
    assert sorted(out.splitlines()) == ["worker-0 | a", "worker-1 | b"]
    assert process.returncode == 0


def test_a_terminal_of_80_columns_shows_one_live_line_below_the_output(server: live.LiveServer, work: Path) -> None:
    with typed.terminal(*RUN, cwd=work) as shown:
        job_id = running(server)
        server.print(job_id, "first\n\x1b]0;title\x07\x1b[2Jsecond\n")
        server.progress(job_id, step=40, total_steps=100, loss=0.25, examples_per_s=123.4)
        shown.sees(r"40/100")
        server.print(job_id, "third\n")
        shown.sees("third")
        rows = [row for row in typed.screen(shown.text) if row]
        assert rows[0].startswith(f"Page: {server.url}/jobs/j-")
        assert rows[1:-1] == ["first", "second", "third"]
        assert "━" in rows[-1]
        assert "step 40/100  loss 0.25" in rows[-1]
        assert max(map(len, rows)) < 80
        assert "\x1b[2J" not in shown.text, "a log line may not clear the screen"
        server.end(job_id)
        assert shown.ended() == 0
    rows = typed.screen(shown.text)
    assert "COMPLETED" in rows[4]
    assert not any("━" in row for row in rows), "the live line is gone in the end"


def test_a_long_refusal_does_not_wrap(server: live.LiveServer, work: Path) -> None:
    with typed.terminal("run", "--gpus", "2", *RUN[1:], cwd=work) as shown:
        job_id = submitted(server)
        server.refuse(job_id, "it needs 2 GPUs on one node, and " + "x" * 200)
        shown.sees("it needs 2 GPUs")
        page, *rows = [row for row in typed.screen(shown.text) if row]
        assert page.startswith("Page: ")
        assert len(rows) == 1
        server.launch(job_id)
        server.end(job_id)
        shown.ended()


def test_a_dumb_terminal_gets_plain_lines(server: live.LiveServer, work: Path) -> None:
    with typed.terminal(*RUN, cwd=work, env={"TERM": "dumb"}) as shown:
        job_id = running(server)
        server.print(job_id, "one\n")
        shown.sees("PROCESSING")
        server.end(job_id)
        assert shown.ended() == 0
    assert "\x1b" not in shown.text
    assert "one" in shown.text


@pytest.mark.parametrize(
    ("answers", "intent", "code"),
    [
        (["s\n"], intents.Intent.CANCEL, 130),
        (["\x03"], intents.Intent.CANCEL, 130),
        (["l\n"], intents.Intent.RUN, 130),
        (["?\n", "f\n"], None, 0),
    ],
    ids=["stop", "again", "leave", "follow"],
)
def test_ctrl_c_asks(
    server: live.LiveServer, work: Path, answers: list[str], intent: intents.Intent | None, code: int
) -> None:
    with typed.terminal(*RUN, cwd=work) as shown:
        job_id = running(server)
        server.print(job_id, "one\n")
        shown.sees("one")
        shown.press("\x03")
        for asked, answer in enumerate(answers, 1):
            typed.until(lambda asked=asked: shown.text.count("leave it running?") == asked)
            shown.press(answer)
        if intent is intents.Intent.CANCEL:
            typed.until(lambda: server.job(job_id).intent is intents.Intent.CANCEL)
            server.release(job_id)
        elif intent is None:
            server.print(job_id, "two\n")
            shown.sees("two")
            server.end(job_id)
        assert shown.ended() == code
    after = server.job(job_id)
    if intent is intents.Intent.RUN:
        assert after.phase is phases.Phase.PROCESSING
        assert "goes on" in shown.text
        assert "oarlock logs" in shown.text
    elif intent is intents.Intent.CANCEL:
        assert after.phase is phases.Phase.CANCELED


def test_without_a_terminal_ctrl_c_stops(server: live.LiveServer, work: Path) -> None:
    with piped(*RUN, cwd=work) as process:
        job_id = running(server)
        server.print(job_id, "one\n")
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        process.send_signal(signal.SIGINT)
        typed.until(lambda: server.job(job_id).intent is intents.Intent.CANCEL)
        server.release(job_id)
        process.communicate(timeout=typed.TIMEOUT_S)
    assert process.returncode == 130
    assert server.job(job_id).phase is phases.Phase.CANCELED


def test_a_watcher_leaves_with_ctrl_c(server: live.LiveServer, work: Path) -> None:
    with piped(*RUN, cwd=work) as mine:
        job_id = running(server)
        server.print(job_id, "one\n")
        with piped("logs", "-f", job_id, cwd=work) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "one\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=typed.TIMEOUT_S)
        with typed.terminal("logs", "-f", job_id, cwd=work) as shown:
            shown.sees("one")
            shown.press("\x03")
            assert shown.ended() == 130
        assert server.job(job_id).intent is intents.Intent.RUN
        server.end(job_id)
        mine.communicate(timeout=typed.TIMEOUT_S)
    assert process.returncode == 130
    assert "goes on" in err
    assert "leave it running?" not in shown.text
    assert mine.returncode == 0


def test_sigterm_stops_following_and_nothing_else(server: live.LiveServer, work: Path) -> None:
    with piped(*RUN, cwd=work) as process:
        job_id = running(server)
        server.print(job_id, "one\n")
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        process.terminate()
        _, err = process.communicate(timeout=typed.TIMEOUT_S)
    assert process.returncode == 143
    assert "goes on" in err
    assert "Traceback" not in err
    assert server.job(job_id).intent is intents.Intent.RUN


def test_a_lost_server_is_said_and_waited_for(server: live.LiveServer, work: Path) -> None:
    with piped(*RUN, cwd=work) as process:
        job_id = running(server)
        server.print(job_id, "one\n")
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "one\n"
        port = server.port
        server.stop()
        _read_until(process.stderr.readline, "waiting for the server")
        server.print(job_id, "two\n")
        server.start(port)
        _read_until(process.stderr.readline, "back")
        server.end(job_id)
        out, _ = process.communicate(timeout=typed.TIMEOUT_S)
    assert out == "two\n"
    assert process.returncode == 0


def test_ctrl_c_without_a_server_says_that_the_job_goes_on(server: live.LiveServer, work: Path) -> None:
    with piped(*RUN, cwd=work) as process:
        job_id = running(server)
        name = server.job(job_id).name
        server.print(job_id, "one\n")
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "one\n"
        server.stop()
        _read_until(process.stderr.readline, "waiting for the server")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=typed.TIMEOUT_S)
    assert process.returncode == 1
    assert f"{name} goes on." in err
    assert f"Then: oarlock cancel {name}" in err


def test_logs_of_a_job_that_has_ended(server: live.LiveServer) -> None:
    job = server.submit(max_restarts=0, roles={"worker": {"count": 2}})
    server.launch(job.id)
    server.process(job.id)
    server.print(job.id, "a\nb\n")
    server.print(job.id, "c\n", index=1)
    server.end(job.id)
    assert sorted(typed.run("logs", job.name).stdout.splitlines()) == ["worker-0 | a", "worker-0 | b", "worker-1 | c"]
    assert typed.run("logs", job.name, "--index", "1").stdout == "c\n"
    assert typed.run("logs", job.name, "--tail", "1", "--index", "0", "--role", "worker").stdout == "b\n"
    assert typed.run("logs", job.name, "--search", "A", "-i").stdout == "worker-0 | a\n"
    assert typed.run("logs", job.name, "--search", "^[bc]$", "--regex", "--index", "1").stdout == "c\n"
    absent = typed.run("logs", job.name, "--search", "absent")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert '"offset":0' in typed.run("logs", job.name, "--search", "c", "--json").stdout
    around = ("logs", job.name, "--at", "worker-0:1:1:stdout.0:2")
    assert typed.run(*around, "--before", "1", "--after", "1").stdout == "worker-0 | a\nworker-0 | b\n"
    assert typed.run(*around, "--before", "0", "--index", "0").stdout == "b\n"
    assert '"offset":2' in typed.run(*around, "--before", "0", "--json").stdout.splitlines()[0]
    assert len(typed.run("logs", job.name, "--at", "end").stdout.splitlines()) == 3
    assert typed.run("logs", job.name, "--at", "worker-7:1:1:stdout.0:0").returncode == 1
    followed = typed.run("logs", job.name, "-f")
    assert (followed.returncode, len(followed.stdout.splitlines())) == (0, 3)
    as_json = typed.run("logs", job.name, "-f", "--json").stdout.splitlines()
    assert as_json[-1] == '{"end":{"phase":"COMPLETED","exit_code":0}}'


def test_a_search_prints_all_hits_although_an_answer_has_a_few_megabytes(server: live.LiveServer) -> None:
    job = server.submit(max_restarts=0)
    server.launch(job.id)
    server.process(job.id)
    for _ in range(6):
        server.print(job.id, ("hit " + "x" * 6000 + "\n") * 150)
    server.end(job.id)
    assert typed.run("logs", job.name, "--search", "hit").stdout.count("hit") == 900


def _freeze(server: live.LiveServer, job_id: str) -> None:
    """Its only task has failed; the place is kept for an hour of the real clock, by which the command line tells."""
    server.rig.clock.now = time.time()
    where = {"key": attempts.TaskKey(job_id, 1, "worker", 0, 1)}
    ended = attempts.Exit(code=3, cause=attempts.Cause.ERROR, at=server.rig.clock())
    stopped = events.StopDecided(attempt=1, cause=attempts.Cause.ERROR, message="worker-0 exited", task="worker-0")
    server.do(server.rig.happen(job_id, events.TaskExited(**where, exit=ended), stopped))
    frozen = server.job(job_id).live
    assert frozen is not None
    assert frozen.frozen_until is not None


def _read_until(readline: Callable[[], str], what: str) -> None:
    for _ in range(100):
        if what in readline():
            return
    raise AssertionError(f"{what!r} was never said")
