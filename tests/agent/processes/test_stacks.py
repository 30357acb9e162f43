"""A hung program shows where it hangs, without having been written for it; one that cannot answer is left in peace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent import rig as rigs

HANGS = {
    "asleep in C": "import time\ndef hang_here():\n    time.sleep(1000)\nhang_here()\n",
    "in a busy loop": "import time\nEND = time.monotonic() + 60\n"
    "def hang_here():\n    while time.monotonic() < END: pass\nhang_here()\n",
    "with signals blocked in Python": (
        "import signal, threading\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
        "def hang_here():\n    threading.Lock().acquire() or threading.Lock().acquire()\n"
        "    lock = threading.Lock(); lock.acquire(); lock.acquire()\nhang_here()\n"
    ),
}


def ask(rig, number):
    rig.server.order(stacks=number)
    rig.server.wait_for(lambda: any(told["request"] == number for told in rig.server.stacks))
    return next(told["stacks"] for told in rig.server.stacks if told["request"] == number)


@pytest.mark.parametrize("hang", HANGS)
def test_stacks_of_a_hung_script_that_knows_nothing_of_us(rig, hang):
    (rig.outside / "script.py").write_text(HANGS[hang].replace("hang_here()\n", "", 0))
    rig.begin('"$PYTHON" $OUTSIDE/script.py; true', grace_s=0.2)
    rigs.until(lambda: list(rig.directory.glob("report/stack-*.ready")), "a ready file")
    rigs.until(lambda: "hang_here" in ask(rig, len(rig.server.stacks) + 1).get("0", ""), "the stack")
    assert 'script.py", line' in rig.server.stacks[-1]["stacks"]["0"]
    assert len(rig.user_processes()) == 2, "no process died of the question"


@rigs.EVERY_PYTHON
def test_stacks_of_forked_and_spawned_children(make_rig, python):
    rig = make_rig(python)
    script = (
        "import multiprocessing, os, subprocess, sys, time\n"
        "def child(): time.sleep(1000)\n"
        "if __name__ == '__main__':\n"
        "    for way in ('fork', 'spawn'):\n"
        "        multiprocessing.get_context(way).Process(target=child).start()\n"
        "    time.sleep(1000)\n"
    )
    (rig.outside / "script.py").write_text(script)
    rig.begin('exec "$PYTHON" $OUTSIDE/script.py', grace_s=0.2)
    rigs.until(lambda: len(list(rig.directory.glob("report/stack-*.ready"))) >= 3, "three ready files")
    rigs.until(
        lambda: sum("in child" in text for text in ask(rig, len(rig.server.stacks) + 1).values()) == 2,
        "both children's stacks",
    )
    assert "0" in rig.server.stacks[-1]["stacks"]


def test_a_process_that_would_die_of_the_signal_or_uses_it_gets_none(rig):
    """A Python that became another program, one that took SIGUSR2, one that closed every file."""
    own = "import os, signal, sys, time\n"
    scripts = {
        "became": own + "os.execv('/bin/sleep', ['sleep', '1000'])\n",
        "took": own
        + "signal.signal(signal.SIGUSR2, lambda *_: os._exit(66))\nopen(os.environ['OUTSIDE'] + '/t', 'w').close()\n"
        "for _ in range(60): time.sleep(1)\n",
        "closed": own
        + "os.closerange(3, 1000)\nf = [open(os.environ['OUTSIDE'] + '/precious', 'w') for _ in range(300)]\n"
        "for _ in range(60): time.sleep(1)\n",
        "answers": own + "open(os.environ['OUTSIDE'] + '/a', 'w').close()\ntime.sleep(1000)\n",
    }
    for name, text in scripts.items():
        (rig.outside / f"{name}.py").write_text(text)
    start = "".join(f'"$PYTHON" $OUTSIDE/{name}.py & ' for name in scripts)
    rig.begin(start + "wait", grace_s=0.2)
    rigs.until(lambda: all((rig.outside / name).exists() for name in ("t", "precious", "a")), "the scripts")
    rigs.until(lambda: any(command_of(pid).startswith(b"sleep") for pid in rig.user_processes()), "the other program")
    assert len(rig.user_processes()) == 5
    before = set(rig.user_processes())
    stacks = rigs.until(lambda: ask(rig, len(rig.server.stacks) + 1), "an answer")
    assert len(stacks) == 1
    assert "answers.py" in stacks["0"]
    assert set(rig.user_processes()) == before
    assert (rig.outside / "precious").read_text() == ""


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def run_with_hook(tmp_path: Path, *argv: str, report: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(rigs.HOOK), **env}
    if report:
        variables["OARLOCK_REPORT"] = str(tmp_path)
    return subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.parametrize("python", [sys.executable, rigs.old_python("3.6"), rigs.old_python("3.8")])
def test_the_hook_says_nothing_leaves_nothing_and_changes_nothing(tmp_path, python):
    done = run_with_hook(tmp_path, python, "-c", "import os; print(os.open('/dev/null', 0))")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", ""), "the first free file is still 3"
    assert not list(tmp_path.iterdir()), "its files go when the process does"


def test_the_hook_does_nothing_outside_a_task(tmp_path):
    done = run_with_hook(
        tmp_path, sys.executable, "-c", "import sys; print('faulthandler' in sys.modules)", report=False
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("report", ["/no/such/directory", "/proc/1", "/dev/full"])
def test_the_hook_survives_a_report_directory_that_is_none(tmp_path, report):
    done = run_with_hook(tmp_path, sys.executable, "-c", "print(1)", OARLOCK_REPORT=report)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.parametrize(
    ("body", "stderr"), [("print('theirs')", ""), ("raise ValueError('theirs')", "ValueError: theirs")]
)
def test_the_users_own_sitecustomize_runs_as_if_ours_were_not_there(tmp_path, body, stderr):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text(body + "\n")
    code = "pass" if stderr else "import sitecustomize; print(sitecustomize.__file__)"
    path = f"{rigs.HOOK}{os.pathsep}{theirs}"
    done = run_with_hook(tmp_path, sys.executable, "-c", code, PYTHONPATH=path)
    alone = run_with_hook(tmp_path, sys.executable, "-c", code, PYTHONPATH=str(theirs), report=False)
    assert stderr in done.stderr
    assert (done.returncode, done.stderr) == (alone.returncode, alone.stderr)
    if not stderr:
        assert done.stdout == alone.stdout == f"theirs\n{theirs}/sitecustomize.py\n"


def test_a_program_that_wants_sigusr2_gets_it(tmp_path):
    code = (
        "import os, signal\nsignal.signal(signal.SIGUSR2, lambda *_: print('mine'))\n"
        "os.kill(os.getpid(), signal.SIGUSR2)\nprint(os.listdir(os.environ['OARLOCK_REPORT']))"
    )
    done = run_with_hook(tmp_path, sys.executable, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine\n[]\n", "")
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
