"""Commands in a pod, against a server that plays the API server's part of the protocol."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlparse

import pytest
import websockets
from tests.backends import local_rig
from websockets.asyncio import server as sockets

from oarlock.backends.kubernetes.apiserver import client, credentials
from oarlock.backends.kubernetes.pods import commands
from oarlock.spec import errors

SUCCESS = json.dumps({"status": "Success"}).encode()
FAILURE = json.dumps(
    {
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
    }
).encode()


class Played:
    """A pod in which one command runs: it echoes its input until `bye`."""

    def __init__(self, protocols: tuple[str, ...] = commands.PROTOCOLS, status: bytes = SUCCESS) -> None:
        self.protocols = protocols
        self.status = status
        self.asked: dict[str, list[str]] = {}
        self.headers: dict[str, str] = {}
        self.sizes: list[object] = []

    async def __call__(self, socket: sockets.ServerConnection) -> None:
        assert socket.request is not None
        self.asked = parse_qs(urlparse(socket.request.path).query)
        self.headers = dict(socket.request.headers)
        await socket.send(bytes([commands.STDERR]) + b"begins\n")
        async for message in socket:
            channel, content = message[0], message[1:]
            if channel == commands.SIZE:
                self.sizes.append(json.loads(content))
            elif channel == commands.STDIN:
                await socket.send(bytes([commands.STDOUT]) + content)
            if content == b"bye" or channel == commands.CLOSE:
                break
        await socket.send(bytes([commands.STATUS]) + self.status)


@contextlib.asynccontextmanager
async def served(played: Played) -> AsyncIterator[client.Client]:
    protocols = [websockets.Subprotocol(name) for name in played.protocols]
    async with sockets.serve(played, "127.0.0.1", 0, subprotocols=protocols) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        identity = credentials.Fixed({"Authorization": "Bearer t"})
        access = credentials.Access(server=f"http://127.0.0.1:{port}", identity=identity)
        async with client.Client(access) as api:
            yield api


async def started(api: client.Client, *, tty: bool = False) -> commands.PodCommand:
    return await commands.start(
        api, "/api/v1/namespaces/n/pods/p", "task", ["cat", "a b"], tty=tty, rows=24, columns=80
    )


async def test_input_goes_in_and_output_and_code_come_out() -> None:
    played = Played(status=FAILURE)
    async with served(played) as api:
        command = await started(api)
        await command.write(b"hello ")
        await command.write(b"bye")
        said = await local_rig.collect(command.output())
    assert said == {"stderr": b"begins\n", "stdout": b"hello bye", "exit": b"7"}
    assert played.asked["command"] == ["cat", "a b"]
    assert (played.asked["container"], played.asked["tty"]) == (["task"], ["false"])
    assert played.headers["Authorization" if "Authorization" in played.headers else "authorization"] == "Bearer t"


async def test_a_terminal_has_a_size_and_one_stream() -> None:
    played = Played()
    async with served(played) as api:
        command = await started(api, tty=True)
        await command.resize(50, 132)
        await command.write(b"bye")
        said = await local_rig.collect(command.output())
    assert said["exit"] == b"0"
    assert "stderr" not in played.asked
    assert played.sizes == [{"Width": 80, "Height": 24}, {"Width": 132, "Height": 50}]


async def test_an_input_can_be_closed_where_the_cluster_can() -> None:
    async with served(Played()) as api:
        command = await started(api)
        await command.close_stdin()
        assert (await local_rig.collect(command.output()))["exit"] == b"0"
    async with served(Played(protocols=commands.PROTOCOLS[1:])) as api:
        old = await started(api)
        await old.close_stdin()
        await old.write(b"bye")
        assert (await local_rig.collect(old.output()))["stdout"] == b"bye"


async def test_a_refusal_is_said_with_the_server_s_words() -> None:
    async def refuse(connection: sockets.ServerConnection, request: object) -> object:
        return connection.respond(403, "you may not\n")

    async with sockets.serve(Played(), "127.0.0.1", 0, process_request=refuse) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        access = credentials.Access(server=f"http://127.0.0.1:{port}", identity=credentials.Fixed({}))
        async with client.Client(access) as api:
            with pytest.raises(errors.Conflict, match=r"\(403\): you may not"):
                await started(api)


async def test_without_a_server_it_is_said() -> None:
    access = credentials.Access(server="http://127.0.0.1:9", identity=credentials.Fixed({}))
    async with client.Client(access) as api:
        with pytest.raises(errors.Unavailable, match="could not be started"):
            await started(api)


@pytest.mark.parametrize(
    ("status", "code"),
    [(SUCCESS, 0), (FAILURE, 7), (b"", 255), (b"command terminated", 255), (b'{"status": "Failure"}', 255)],
)
def test_the_code_in_the_last_message(status: bytes, code: int) -> None:
    assert commands.exit_code(status) == code
