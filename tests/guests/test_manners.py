"""The habits of programs: they read stdin, print much, draw bars, leave processes behind, ignore SIGTERM."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e import shell as shells
from tests.guests import sides as both

pytestmark = pytest.mark.guests

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
RUN = (shells.OARLOCK, "run", "--cpus", "0.5")


def run(sides: both.Sides, *command: str, said: bytes = b"", **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command with `said` piped into it."""
    return subprocess.run(
        command,
        env={**sides.shell.env, **env},
        cwd=sides.shell.work,
        input=said.decode(),
        capture_output=True,
        text=True,
        timeout=both.PATIENCE_S,
        check=False,
    )


@contextlib.contextmanager
def going(sides: both.Sides, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command as it runs, stderr with stdout; it is killed when it takes too long, and in the end."""
    process = subprocess.Popen(
        command,
        env=sides.shell.env,
        cwd=sides.shell.work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    patience = threading.Timer(both.PATIENCE_S, process.kill)
    patience.start()
    try:
        yield process
    finally:
        patience.cancel()
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def read_until(process: subprocess.Popen[bytes], word: bytes) -> bytes:
    """Return the output of the process until `word` is in it, or until the process ends."""
    assert process.stdout is not None
    said = b""
    while word not in said and (chunk := os.read(process.stdout.fileno(), 65536)):
        said += chunk
    assert word in said, said.decode(errors="replace")[-3000:]
    return said


def eventually(test: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + both.PATIENCE_S
    while not test():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_the_record_of_an_error_is_told(sides: both.Sides) -> None:
    """torchrun prints which rank failed first, and how; so do we, and both end with 1."""
    theirs = run(sides, *TORCHRUN, "recorded.py")
    assert theirs.returncode == 1
    assert "ValueError: shard 7 is empty" in theirs.stderr
    for places in (("--nproc", "2"), ("--workers", "2")):
        ours = run(sides, *RUN, *places, "--name", "recorded", "--", "python", "recorded.py")
        assert ours.returncode == 1, ours.stderr
        assert "ValueError: shard 7 is empty" in ours.stderr
        assert "no restart" in ours.stderr
        blamed = sides.shell.job("recorded")["attempts"][-1]["verdict"]
        assert "shard 7 is empty" in " ".join(blamed["last_lines"]), blamed


def test_stdin_is_not_read_and_that_is_said(sides: both.Sides) -> None:
    assert run(sides, "python", "reads.py", said=b"3\n4\n").stdout == "sum 7\n"
    silent = run(sides, *RUN, "--", "python", "reads.py", said=b"3\n4\n")
    assert "sum 0" in silent.stdout
    assert "stdin is not sent to a job" in silent.stderr
    assert run(sides, "python", "asks.py", said=b"yes\n").stdout == "Overwrite? begins with yes\n"
    ended = run(sides, *RUN, "--", "python", "asks.py", said=b"yes\n")
    assert ended.returncode == 1
    assert "The stdin of a job is closed." in ended.stderr


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_200_mb_of_output_arrive_whole(sides: both.Sides, tmp_path: Path) -> None:
    seconds, digests = [], []
    for number, command in enumerate((("python", "prints.py"), (*RUN, "--", "python", "prints.py"))):
        path = tmp_path / f"output-{number}"
        with path.open("wb") as file:
            began = time.monotonic()
            done = subprocess.run(
                command,
                env=sides.shell.env,
                cwd=sides.shell.work,
                stdout=file,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                timeout=both.PATIENCE_S,
                check=False,
            )
        assert done.returncode == 0, done.stderr.decode()
        seconds.append(time.monotonic() - began)
        digests.append(digest_of(path))
        assert path.stat().st_size > 200_000_000
        path.unlink()
    print(f"200 MB: {seconds[0]:.1f} s alone, {seconds[1]:.1f} s under oarlock run")
    assert digests[0] == digests[1]


def test_a_progress_bar_arrives_while_it_is_drawn(sides: both.Sides, tmp_path: Path) -> None:
    both.need("tqdm")
    for number, command in enumerate((("python",), (*RUN, "--", "python"))):
        go = tmp_path / f"go-{number}"
        with going(sides, *command, "bar.py", str(go)) as process:
            said = read_until(process, b" 50/100 ")
            assert b"100/100" not in said
            go.touch()
            said += process.communicate()[0]
            assert process.returncode == 0
        assert b"100%|##########| 100/100" in said
        assert b"all 100 steps" in said


def test_forked_and_spawned_workers_work_and_none_is_left(sides: both.Sides, tmp_path: Path) -> None:
    mark = f"GUEST={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    output = tmp_path / "output"  # through a pipe, the processes left behind would keep their reader waiting
    with output.open("w") as file:
        env = {**sides.shell.env, name: value}
        subprocess.run(
            ["python", "forks.py"], env=env, cwd=sides.shell.work, stdout=file, check=True, timeout=both.PATIENCE_S
        )
    expected = both.lines(output.read_text())
    assert expected == ["fork 328350", "spawn 328350"]
    left = both.alive(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(left) >= 3  # those three, and a helper of multiprocessing that waits for them
    ours = f"GUEST={uuid.uuid4().hex}"
    assert sides.oarlock("--env", ours, "--", "python", "forks.py") == expected
    eventually(lambda: not both.alive(ours), "processes of the task were left behind")


def test_an_ignored_sigterm_is_followed_by_a_kill(sides: both.Sides, tmp_path: Path) -> None:
    """Alone, only SIGKILL ends it; under Oarlock that comes after the grace, and nothing is left."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    with going(sides, "python", "stubborn.py", str(theirs)) as process:
        read_until(process, b"ready")
        process.terminate()
        eventually(theirs.exists, "SIGTERM did not arrive")
        assert process.poll() is None
        process.kill()
        assert process.wait() == -signal.SIGKILL
    mark = f"GUEST={uuid.uuid4().hex}"
    command = ("--name", "stubborn", "--grace", "1s", "--env", mark, "--", "python", "stubborn.py", str(ours))
    with going(sides, *RUN, *command) as process:
        read_until(process, b"ready")
        sides.shell.do("cancel", "stubborn")
        process.communicate(timeout=both.PATIENCE_S)
        assert process.returncode == 130
    assert ours.read_text() == "SIGTERM\n"
    assert sides.shell.job("stubborn")["phase"] == "CANCELED"
    assert not both.alive(mark)
