"""A server that was killed is followed by one that finds all that it had started, and misses no exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.backends import contract, local_rig

from oarlock.backends.local import processes
from oarlock.spec import attempts, errors

State = contract.State
CODES = (0, 3, 41)

SERVER = """\
import asyncio, sys, time
from pathlib import Path
from tests.backends import contract, local_rig

async def main():
    rig = local_rig.LocalRig(Path(sys.argv[1]))
    wait = 'for _ in $(seq 6000); do [ -e "$OARLOCK_TASK_DIR/../go" ] && break; sleep 0.05; done; exit '
    ends = [rig.launch_of(contract.key(place), wait + code) for place, code in enumerate(sys.argv[2:])]
    await rig.backend.launch([*ends, rig.sleeper(contract.key(9))])
    print("launched", flush=True)
    time.sleep(600)

asyncio.run(main())
"""


async def test_tasks_that_a_killed_server_had_started_are_adopted(rig: local_rig.LocalRig) -> None:
    root = Path(__file__).parent.parent.parent
    argv = [sys.executable, "-c", SERVER, str(rig.home), *map(str, CODES)]
    inherited = os.open(root, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    server = await asyncio.to_thread(
        subprocess.Popen, argv, cwd=root, stdout=subprocess.PIPE, pass_fds=(inherited,), start_new_session=True
    )
    assert server.stdout is not None
    line = await asyncio.to_thread(server.stdout.readline)
    assert line == b"launched\n"
    agent = int((await rig.until_file(rig.directory(contract.key(9)) / "agent.pid")).split()[0])
    assert root not in {path.readlink() for path in Path(f"/proc/{agent}/fd").iterdir()}
    os.killpg(server.pid, signal.SIGKILL)
    await asyncio.to_thread(server.wait)
    server.stdout.close()
    os.close(inherited)

    await rig.reopen()
    now = await contract.seen(rig)
    assert {of.state for of in now.values()} == {State.RUNNING}, "its whole process group was killed, and none of them"
    waiting = asyncio.create_task(rig.backend.wait(60))
    (rig.directory(contract.key(0)).parent / "go").touch()
    await asyncio.wait_for(waiting, rig.PATIENCE_S)
    for place, code in enumerate(CODES):
        ended = await contract.until_state(rig, contract.key(place), State.GONE)
        assert ended.exit is not None
        assert ended.exit.code == code
    assert (await contract.seen(rig))[contract.key(9)].state is State.RUNNING
    await contract.kill_and_see(rig, contract.key(9))


async def test_an_agent_has_none_of_the_servers_files_and_secrets(
    home: Path, rigs: local_rig.Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OARLOCK_TOKEN", "secret")
    monkeypatch.setenv("SOMETHING", "private")
    rig = rigs(home)
    secret = os.open(home.parent, os.O_RDONLY)
    os.set_inheritable(secret, True)
    await rig.backend.launch([rig.sleeper(contract.key())])
    await rig.until((rig.directory(contract.key()) / "env.json").exists, "the agent runs")
    agent = int((rig.directory(contract.key()) / "agent.pid").read_text().split()[0])
    names = set()
    for path in Path(f"/proc/{agent}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the agent has closed it meanwhile
            names.add(path.readlink())
    env = Path(f"/proc/{agent}/environ").read_bytes()
    os.close(secret)
    ours = {name for name in names if name.is_absolute() and not name.is_relative_to(rig.directory(contract.key()))}
    assert ours <= {Path("/dev/null")}
    assert not any(str(name).startswith(("socket:", "anon_inode:")) for name in names)
    assert b"secret" not in env
    assert b"private" not in env
    seen = processes.look(agent)
    assert seen is not None
    assert seen.session == agent, "a session of its own: no terminal's hangup reaches it"


async def test_two_homes_do_not_see_each_other(home: Path, rigs: local_rig.Rigs, tmp_path: Path) -> None:
    here, there = rigs(home), rigs(tmp_path / "second-home")
    for rig in (here, there):
        await rig.backend.launch([rig.sleeper(contract.key())])
    await contract.kill_and_see(here, contract.key())
    await here.backend.discard("j-contract", 1)
    assert contract.key() not in await contract.seen(here)
    assert (await contract.seen(there))[contract.key()].state is State.RUNNING


async def test_hundreds_of_finished_tasks_are_not_read_again(rig: local_rig.LocalRig) -> None:
    """Their records are read once; after that a look opens nothing of theirs."""
    keys = [contract.key(job=f"j-{number}") for number in range(3)]
    await rig.backend.launch([rig.exiter(key, 0) for key in keys])
    for key in keys:
        await contract.until_state(rig, key, State.GONE)
    for key in keys:
        for child in rig.directory(key).iterdir():
            child.unlink()
    assert {of.state for of in (await contract.seen(rig)).values()} == {State.GONE}


async def test_an_idle_backend_does_not_run(rig: local_rig.LocalRig) -> None:
    """While nothing happens the loop is not woken: it sleeps for the whole time."""
    await rig.backend.launch([rig.sleeper(contract.key())])
    await rig.until((rig.directory(contract.key()) / "env.json").exists, "the agent runs")
    await contract.seen(rig)
    before = time.thread_time()
    await rig.backend.wait(0.5)
    spent = time.thread_time() - before
    assert spent < 0.1, "CPU seconds of this thread, not time that passed: another's load does not count"


async def test_an_attempt_that_still_runs_is_not_discarded(rig: local_rig.LocalRig) -> None:
    await rig.backend.launch([rig.sleeper(contract.key())])
    with pytest.raises(errors.Conflict):
        await rig.backend.discard("j-contract", 1)
    assert (await contract.seen(rig))[contract.key()].state is State.RUNNING


@pytest.mark.parametrize(
    "key",
    [
        attempts.TaskKey("../../etc", 1, "worker", 0, 1),
        attempts.TaskKey("", 1, "worker", 0, 1),
        attempts.TaskKey("j/k", 1, "worker", 0, 1),
        attempts.TaskKey("j\0", 1, "worker", 0, 1),
        attempts.TaskKey("..", 1, "worker", 0, 1),
        attempts.TaskKey("j" * 200, 1, "worker", 0, 1),
        attempts.TaskKey("j", -1, "worker", 0, 1),
        attempts.TaskKey("j", 1, "../x", 0, 1),
        attempts.TaskKey("j", 1, "worker", -1, 1),
    ],
    ids=repr,
)
async def test_a_key_that_no_server_made_becomes_no_path(rig: local_rig.LocalRig, key: attempts.TaskKey) -> None:
    with pytest.raises(errors.InvalidInput):
        await rig.backend.launch([rig.launch_of(key, "true")])
    assert not any((rig.home / "tasks").rglob("*"))


async def test_files_that_a_task_has_left_are_offered_without_its_links(rig: local_rig.LocalRig) -> None:
    hostile = (
        "echo out; mkdir -p report; echo x >report/metrics-0.bin; ln -s /etc/passwd stderr.0; "
        "ln -s /etc/passwd report/metrics-1.bin; echo no >stdout.x; mkdir stdout.7"
    )
    await rig.backend.launch([rig.launch_of(contract.key(), hostile)])
    await contract.until_state(rig, contract.key(), State.GONE)
    left = {one.stream: one.path.read_text() for one in await rig.backend.leftovers(contract.key())}
    assert left == {"stdout.0": "out\n", "metrics-0": "x\n"}


async def test_discarding_follows_no_link_and_is_stopped_by_no_mode(rig: local_rig.LocalRig, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o751)
    kept.chmod(0o751)
    (kept / "result").write_text("precious")
    hostile = f"ln -s {kept} link; mkdir -p code/deep; touch code/deep/file; chmod 000 code/deep code"
    await rig.backend.launch([rig.launch_of(contract.key(), hostile)])
    await contract.until_state(rig, contract.key(), State.GONE)
    await rig.backend.discard("j-contract", 1)
    assert (kept / "result").read_text() == "precious"
    assert kept.stat().st_mode & 0o777 == 0o751
    assert not any((rig.home / "tasks").iterdir())


async def test_a_task_that_writes_no_sense_into_its_records_harms_only_itself(rig: local_rig.LocalRig) -> None:
    nonsense = 'echo "{" >exit.json~; mkfifo killed.json; ln -s /dev/zero gone.json; mkdir launch.json~'
    await rig.backend.launch([rig.launch_of(contract.key(), nonsense)])
    await contract.until_state(rig, contract.key(), State.GONE)
    await rig.reopen()
    await contract.until_state(rig, contract.key(), State.GONE)
