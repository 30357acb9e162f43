"""`exec`: a command in the environment of a task that runs, or that is frozen, on pipes and on a terminal."""

from __future__ import annotations

import asyncio

import pytest
from tests.backends import contract, local_rig

from oarlock.backends.local import processes
from oarlock.spec import errors

KEY = contract.key()
State = contract.State


async def running(rig: local_rig.LocalRig) -> None:
    await rig.backend.launch([rig.launch_of(KEY, local_rig.IMMUNE, env={"COLOUR": "green"})])
    await rig.until((rig.directory(KEY) / "env.json").exists, "it runs")


async def said(rig: local_rig.LocalRig, *command: str, tty: bool = False, stdin: bytes = b"") -> dict[str, bytes]:
    process = await rig.backend.exec(KEY, command, tty=tty, rows=33, columns=99)
    await process.write(stdin)
    await process.close_stdin()
    return await asyncio.wait_for(local_rig.collect(process.output()), rig.PATIENCE_S)


async def test_a_command_has_the_tasks_environment_and_its_own_streams(rig: local_rig.LocalRig) -> None:
    await running(rig)
    script = 'echo "$COLOUR $OARLOCK_TASK_KEY"; pwd; cat; echo trouble >&2; exit 7'
    assert await said(rig, "sh", "-c", script, stdin=b"typed\n") == {
        "stdout": f"green {KEY}\n{rig.directory(KEY)}\ntyped\n".encode(),
        "stderr": b"trouble\n",
        "exit": b"7",
    }


@pytest.mark.parametrize(
    ("command", "code"),
    [(("sh", "-c", "kill -9 $$"), b"137"), (("no-such-program",), b"127"), (("/",), b"126"), (("true",), b"0")],
    ids=["signal", "missing", "a directory", "well"],
)
async def test_its_exit_code_is_the_shells(rig: local_rig.LocalRig, command: tuple[str, ...], code: bytes) -> None:
    await running(rig)
    assert (await said(rig, *command))["exit"] == code


async def test_all_of_a_large_output_arrives_and_a_slow_reader_holds_it_back(rig: local_rig.LocalRig) -> None:
    await running(rig)
    process = await rig.backend.exec(KEY, ["sh", "-c", "head -c 20000000 /dev/zero; head -c 1000000 /dev/zero >&2"])
    await asyncio.sleep(0.1)
    found = await asyncio.wait_for(local_rig.collect(process.output()), rig.PATIENCE_S)
    assert {stream: len(data) for stream, data in found.items()} == {
        "stdout": 20_000_000,
        "stderr": 1_000_000,
        "exit": 1,
    }


async def test_output_from_before_the_end_arrives_however_late_it_is_read(rig: local_rig.LocalRig) -> None:
    """More pieces than are queued: when the command has ended, the last of them are in the pipe still."""
    await running(rig)
    pieces = "i=0; while [ $i -lt 60 ]; do echo $i; i=$((i+1)); sleep 0.005; done; echo >finished"
    process = await rig.backend.exec(KEY, ["sh", "-c", pieces])
    await rig.until((rig.directory(KEY) / "finished").exists, "it has written all")
    await asyncio.sleep(0.05)
    found = await asyncio.wait_for(local_rig.collect(process.output()), rig.PATIENCE_S)
    assert found["stdout"].split() == [str(number).encode() for number in range(60)]


async def test_a_child_that_holds_the_pipe_open_is_not_waited_for(rig: local_rig.LocalRig) -> None:
    await running(rig)
    found = await said(rig, "sh", "-c", "sleep 600 & echo done")
    assert found == {"stdout": b"done\n", "exit": b"0"}


async def test_a_terminal_is_one(rig: local_rig.LocalRig) -> None:
    await running(rig)
    process = await rig.backend.exec(
        KEY, ["sh", "-c", "stty size; tty; read -r x; stty size"], tty=True, rows=33, columns=99
    )
    output = process.output()
    found = b""
    while b"/dev/pts" not in found:
        found += (await asyncio.wait_for(anext(output), rig.PATIENCE_S))[1]
    await process.resize(44, 111)
    await process.write(b"\r")
    rest = await asyncio.wait_for(local_rig.collect(output), rig.PATIENCE_S)
    assert found.startswith(b"33 99\r\n/dev/pts/")
    assert rest["stdout"].endswith(b"44 111\r\n")
    assert rest["exit"] == b"0"


async def test_a_terminals_interrupt_key_interrupts(rig: local_rig.LocalRig) -> None:
    """Only a terminal that controls its session turns the key into a signal. (A shell that starts a process at that
    moment loses it: so it starts none.)
    """
    await running(rig)
    process = await rig.backend.exec(
        KEY,
        ["sh", "-c", "trap 'echo caught; exit 5' INT; echo up; i=0; while [ $((i += 1)) -lt 50000000 ]; do :; done"],
        tty=True,
    )
    output = process.output()
    assert b"up" in (await asyncio.wait_for(anext(output), rig.PATIENCE_S))[1]
    await process.write(b"\x03")
    rest = await asyncio.wait_for(local_rig.collect(output), rig.PATIENCE_S)
    assert b"caught" in rest["stdout"]
    assert rest["exit"] == b"5"


async def test_killing_a_command_ends_its_session_and_not_the_task(rig: local_rig.LocalRig) -> None:
    await running(rig)
    nap = local_rig.nap()
    process = await rig.backend.exec(KEY, ["sh", "-c", f"sleep {nap} & sleep {nap}"])
    await rig.until(lambda: len(local_rig.living(nap)) >= 2, "it runs")
    await process.kill()
    found = await asyncio.wait_for(local_rig.collect(process.output()), rig.PATIENCE_S)
    assert found == {"exit": b"137"}
    await rig.until(lambda: not local_rig.living(nap), "its child is dead too")
    assert (await contract.seen(rig))[KEY].state is State.RUNNING


async def test_a_command_dies_with_its_task(rig: local_rig.LocalRig) -> None:
    await running(rig)
    nap = local_rig.nap()
    process = await rig.backend.exec(KEY, ["sh", "-c", f"setsid sleep {nap} & sleep {nap}"])
    await rig.until(lambda: len(local_rig.living(nap)) >= 2, "both run")
    await contract.kill_and_see(rig, KEY)
    assert (await asyncio.wait_for(local_rig.collect(process.output()), rig.PATIENCE_S))["exit"] == b"137"
    assert not local_rig.living(nap)


async def test_a_frozen_task_can_be_looked_into_and_a_released_one_cannot(rig: local_rig.LocalRig) -> None:
    await rig.backend.launch([rig.launch_of(KEY, "echo evidence >scene; exit 3", freeze_s=600)])
    await rig.until((rig.directory(KEY) / "exit.json").exists, "it has failed")
    seen = (await contract.seen(rig))[KEY]
    assert seen.state is State.RUNNING, "its agent stays"
    assert seen.exit is not None
    assert seen.exit.code == 3
    assert (await said(rig, "cat", "scene"))["stdout"] == b"evidence\n"
    await contract.kill_and_see(rig, KEY)
    with pytest.raises(errors.Conflict):
        await rig.backend.exec(KEY, ["true"])


async def test_a_reader_that_goes_away_stops_nothing(rig: local_rig.LocalRig) -> None:
    await running(rig)
    process = await rig.backend.exec(KEY, ["sh", "-c", "yes | head -c 30000000; echo ok >finished"])
    output = process.output()
    await anext(output)
    await output.aclose()
    await rig.until((rig.directory(KEY) / "finished").exists, "it ran to its end")


async def test_closing_the_backend_ends_its_commands_and_not_the_task(rig: local_rig.LocalRig) -> None:
    await running(rig)
    nap = local_rig.nap()
    await rig.backend.exec(KEY, ["sh", "-c", f"timeout 60 yes; sleep {nap}"])
    await rig.until(lambda: bool(local_rig.living(nap)), "it runs")
    await asyncio.wait_for(rig.backend.close(), rig.PATIENCE_S)
    assert not local_rig.living(nap)
    await rig.reopen()
    assert (await contract.seen(rig))[KEY].state is State.RUNNING


async def test_a_command_can_be_asked_for_before_the_task_has_started(rig: local_rig.LocalRig) -> None:
    await running(rig)
    (rig.directory(KEY) / "env.json").unlink()
    with pytest.raises(errors.Conflict, match="not started"):
        await rig.backend.exec(KEY, ["true"])


@pytest.mark.parametrize("command", [[], ["a\0b"]], ids=["none", "NUL"])
async def test_a_command_that_is_none_is_refused(rig: local_rig.LocalRig, command: list[str]) -> None:
    await running(rig)
    with pytest.raises(errors.InvalidInput):
        await rig.backend.exec(KEY, command)


async def test_its_processes_are_the_tasks_whatever_the_environment_says(rig: local_rig.LocalRig) -> None:
    await running(rig)
    nap = local_rig.nap()
    (rig.directory(KEY) / "env.json").write_text('{"PATH": "/usr/bin:/bin"}')
    process = await rig.backend.exec(KEY, ["sleep", nap])
    await rig.until(lambda: bool(local_rig.living(nap)), "it runs")
    mark = processes.Mark(str(KEY), str(rig.directory(KEY)))
    assert set(local_rig.living(nap)) <= {one.pid for one in processes.members({mark})[mark]}
    await process.kill()
    await asyncio.wait_for(local_rig.collect(process.output()), rig.PATIENCE_S)
