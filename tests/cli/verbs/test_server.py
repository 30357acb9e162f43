"""The whole chain with a real server: it starts by itself, outlives its starter, and ends when it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli import typed

from oarlock.client import places


@pytest.fixture
def work(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory; whatever server a test starts is ended after it."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    yield place
    for name in ("home", "oarlock-home"):
        left = places.read(tmp_path / name)
        if left is not None and places.alive(left.pid):
            os.kill(left.pid, 15)
            typed.until(lambda left=left: not places.alive(left.pid))


def test_a_first_run_starts_a_server_says_so_and_runs(work: Path, home: Path) -> None:
    (work / "train.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)\n")
    done = typed.run("run", "--max-restarts", "0", "--", "python", "train.py")
    assert done.stdout == "out\n"
    assert "\nerr\n" in done.stderr
    assert done.returncode == 3, done.stderr
    assert "Started a local server at http://127.0.0.1:" in done.stderr
    assert "FAILED" in done.stderr
    assert "worker-0" in done.stderr
    again = typed.run("run", "--", "python", "-c", "print('again')")
    assert (again.returncode, again.stdout) == (0, "again\n"), again.stderr
    assert "Started" not in again.stderr
    listed = json.loads(typed.run("ps", "--json").stdout)["items"]
    assert [job["phase"] for job in listed] == ["COMPLETED", "FAILED"]
    shown = typed.run("show", listed[1]["id"])
    assert "Attempt 1" in shown.stdout
    assert "exit code 3" in shown.stdout
    assert typed.run("nodes").stdout.startswith("NODE")
    assert typed.run("rm", listed[1]["name"]).returncode == 0
    assert typed.run("show", listed[1]["id"]).returncode == 1


def test_up_and_down(work: Path, home: Path) -> None:
    assert "No server runs" in typed.run("down").stderr
    up = typed.run("up", "--detach", "--virtual-nodes", "2", "--virtual-gpus", "4", "--json")
    assert up.returncode == 0, up.stderr
    left = json.loads(up.stdout)
    assert places.alive(left["pid"])
    nodes = json.loads(typed.run("nodes", "--json").stdout)["items"]
    assert [node["node"]["capacity"]["gpus"] for node in nodes] == [4, 4]
    again = typed.run("up", "--detach")
    assert (again.stdout.strip(), again.returncode) == (left["url"], 0)
    link = typed.run("ui", "--print").stdout.strip()
    assert link.startswith(f"{left['url']}/login#code=oac_"), link
    assert f"{left['url']}/login#code=" in again.stderr
    refused = typed.run("up")
    assert refused.returncode == 1
    assert "oarlock down" in refused.stderr
    assert typed.run("down").returncode == 0
    assert not places.alive(left["pid"])
    assert places.read(home) is None


def test_up_in_the_foreground_ends_with_ctrl_c(work: Path, home: Path) -> None:
    with typed.terminal("up") as shown:
        shown.sees("Listening at http")
        shown.press("\x03")
        assert shown.ended() == 0
    assert "Traceback" not in shown.text


def test_running_jobs_go_on_without_a_server_and_are_found_again(work: Path, home: Path) -> None:
    (work / "slow.py").write_text(
        "import pathlib, time\nprint('begun', flush=True)\n"
        "for _ in range(6000): pathlib.Path('"
        + str(work)
        + "/go').exists() or time.sleep(0.05)\nprint('done', flush=True)\n"
    )
    assert typed.run("up", "--detach").returncode == 0
    process = subprocess.Popen(
        [*typed.COMMAND, "run", "--", "python", "slow.py"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        left = places.read(home)
        assert left is not None
        os.kill(left.pid, 9)
        typed.until(lambda: not places.alive(left.pid))
        assert typed.run("up", "--detach").returncode == 0
        (work / "go").touch()
        out, err = process.communicate(timeout=typed.TIMEOUT_S)
    assert (out, process.returncode) == ("done\n", 0), err


@pytest.mark.long
def test_a_dead_server_is_started_again_by_the_next_run(work: Path, home: Path) -> None:
    assert typed.run("up", "--detach").returncode == 0
    left = places.read(home)
    assert left is not None
    os.kill(left.pid, 9)
    typed.until(lambda: not places.alive(left.pid))
    assert typed.run("ps").returncode == 1
    done = typed.run("run", "--", "python", "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "Started a local server" in done.stderr


def test_two_first_runs_at_once_share_one_server(work: Path, home: Path) -> None:
    both = [
        subprocess.Popen(
            [*typed.COMMAND, "run", "--", "python", "-c", f"print({number})"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for number, process in enumerate(both):
        out, err = process.communicate(timeout=280)
        assert (out, process.returncode) == (f"{number}\n", 0), err
    assert len(json.loads(typed.run("ps", "--json").stdout)["items"]) == 2


def test_a_server_that_cannot_start_says_why(work: Path, home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[server]\nprot = 1\n")
    done = typed.run("run", "--", "python", "-c", "print(1)")
    assert done.returncode == 1
    assert "prot" in done.stderr
    assert "oarlock doctor" in done.stderr


def test_a_command_inside_a_task(work: Path, home: Path) -> None:
    started = typed.run("run", "--detach", "--name", "box", "--", "sh", "-c", "echo ready; sleep 60")
    assert started.returncode == 0, started.stderr
    typed.until(lambda: "ready" in typed.run("logs", "box").stdout)
    done = typed.run(
        "exec", "box", "--", "sh", "-c", "cat; echo $OARLOCK_JOB_NAME; echo no >&2; exit 5", stdin="said\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, "said\nbox\n", "no\n")
    with typed.terminal("exec", "box", "sh") as shown:
        shown.press("stty size; tty; exit 4\n")
        assert shown.ended() == 4
    assert "24 80" in shown.text
    assert "/dev/" in shown.text
    with typed.terminal("exec", "box", "stty", "size", size=(0, 0)) as shown:  # as under `script`
        assert shown.ended() == 0, shown.text
    assert "24 80" in shown.text
    assert typed.run("cancel", "box", "--wait").returncode == 0
    followed = typed.run("logs", "-f", "box")
    assert followed.returncode == 130
    assert "CANCELED" in followed.stderr


@pytest.mark.long
def test_a_reader_of_a_frozen_job_is_told_the_next_step(work: Path, home: Path) -> None:
    words = ["run", "--freeze", "5m", "--max-restarts", "0", "--name", "kept", "--", "sh", "-c", "exit 3"]
    process = subprocess.Popen(
        [*typed.COMMAND, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stderr is not None
        said = ""
        while "oarlock cancel kept" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert "kept has failed: worker-0 exited with code 3. Its place is kept until" in said
        assert "oarlock exec kept -- sh" in said
        assert "and its place is kept for" in typed.run("why", "kept").stdout
        assert "FROZEN" in typed.run("ps").stdout
        assert "FROZEN" in typed.run("show", "kept").stdout
        assert typed.run("cancel", "kept").returncode == 0
        assert process.wait(typed.TIMEOUT_S) == 3
