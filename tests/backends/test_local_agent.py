"""The local backend with the real agent, which speaks with a stand-in for the server."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from tests import needs
from tests.agent import fakeserver
from tests.backends import contract, local_rig

from oarlock.agent import zipapp
from oarlock.backends import backends
from oarlock.backends.local import backend
from oarlock.spec import attempts, holdings
from oarlock.spec.protocol import assignments

KEY = contract.key()
MIB = 1 << 20
State = contract.State


class AgentRig(local_rig.LocalRig):
    def __init__(self, home: Path, server: fakeserver.FakeServer, **more: object) -> None:
        self._server = server
        super().__init__(home, **more)
        zipapp.build(self.agent.with_name("agent.pyz"))

    def open(self) -> backend.LocalBackend:
        self.agent = self.home.parent / "agent.pyz"
        return super().open()

    def launch_of(self, key: attempts.TaskKey, command: object, **more: object) -> backends.TaskLaunch:
        launch = super().launch_of(key, command, **more)
        told = {"server": self._server.url, "token": "token-1", "grace_s": 0.5, "path_env": {"PATH": "/usr/bin:/bin"}}
        return msgspec.structs.replace(launch, assignment=msgspec.structs.replace(launch.assignment, **told))


@pytest.fixture
def server() -> Iterator[fakeserver.FakeServer]:
    server = fakeserver.FakeServer().start()
    server.order(release=True)
    yield server
    server.stop()


@pytest.fixture
async def rig(home: Path, server: fakeserver.FakeServer) -> AsyncIterator[AgentRig]:
    rig = AgentRig(home, server)
    yield rig
    await rig.close()


async def test_it_runs_and_its_record_is_read(rig: AgentRig, server: fakeserver.FakeServer) -> None:
    await rig.backend.launch([rig.launch_of(KEY, "echo hello; exit 3")])
    seen = await contract.until_state(rig, KEY, State.GONE)
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.cause) == (3, attempts.Cause.ERROR)
    assert seen.exit.last_lines == ("hello",)
    (left,) = [one for one in await rig.backend.leftovers(KEY) if one.stream == "stdout.0"]
    assert left.path.read_bytes() == server.logs["stdout.0"] == b"hello\n"


async def test_a_killed_agent_leaves_its_process_to_be_killed(rig: AgentRig) -> None:
    await rig.backend.launch([rig.launch_of(KEY, 'echo $$ >"$OARLOCK_TASK_DIR/pid"; ' + local_rig.IMMUNE)])
    await rig.until_file(rig.directory(KEY) / "pid")
    agent = int((rig.directory(KEY) / "agent.pid").read_text().split()[0])
    assert msgspec.json.decode((rig.directory(KEY) / "agent.json").read_bytes())["pid"] == agent
    os.kill(agent, 9)
    await contract.until_state(rig, KEY, State.ENDED)
    await contract.kill_and_see(rig, KEY)


async def test_a_command_runs_inside_as_the_agent_says(rig: AgentRig) -> None:
    await rig.backend.launch([rig.launch_of(KEY, local_rig.IMMUNE, env={"COLOUR": "green"})])
    await rig.until((rig.directory(KEY) / "env.json").exists, "it runs")
    process = await rig.backend.exec(KEY, ["sh", "-c", 'echo "$COLOUR $OARLOCK_JOB"; pwd'])
    said = await local_rig.collect(process.output())
    assert said["stdout"].decode().splitlines()[0] == f"green {KEY.job}"


@needs.mark("control groups", there=local_rig.can_limit("memory"))
async def test_the_agent_and_the_backend_agree_that_a_child_was_killed_for_memory(
    rig: AgentRig, server: fakeserver.FakeServer
) -> None:
    code = "import os; pid = os.fork(); x = b'x' * (256 << 20) if not pid else 0; os.wait(); os._exit(9)"
    amount = holdings.Resources(memory_bytes=64 * MIB)
    await rig.backend.launch([rig.launch_of(KEY, [sys.executable, "-I", "-S", "-c", code], amount=amount)])
    seen = await contract.until_state(rig, KEY, State.GONE)
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.cause) == (9, attempts.Cause.OOM)
    assert [record["reason"] for record in server.exits()] == ["oom"]
    peak = seen.exit.memory_peak_bytes
    assert peak is not None
    assert 48 * MIB < peak <= 128 * MIB, "it came to its limit, the agent beside it"


def test_the_agent_reads_the_files_that_the_backend_writes() -> None:
    """Every field of an assignment is one that the agent's own page names, and none is forgotten there."""
    page = (Path(__file__).parent.parent.parent / "docs" / "agent-protocol.md").read_text()
    unnamed = [name for name in assignments.Assignment.__struct_fields__ if f"`{name}`" not in page]
    assert unnamed == []
