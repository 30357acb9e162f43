"""A command inside a running or frozen task, over a web socket.

In: first the argv list as JSON, then binary frames with the stream in the first byte (0: stdin), and JSON text frames
`{"resize": [rows, columns]}` and `{"eof": true}`. Out: binary frames (1: stdout, 2: stderr), and at the end one text
frame `{"exit": code}`, or `{"error": ...}` where the command did not start. A client that leaves ends the command.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from starlette import types

from oarlock.api import failures, routes
from oarlock.backends import backends
from oarlock.spec import attempts, errors, jobs, phases, roles
from oarlock.spec.access import users
from oarlock.spec.input import validation

MAX_ARGUMENTS = 1000
FIRST_MESSAGE_S = 30.0
_STREAMS = {"stdout": b"\x01", "stderr": b"\x02"}

Size = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class ExecQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    role: roles.RoleName | None = None
    index: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    tty: bool = False
    rows: Size = 24
    columns: Size = 80


class Control(msgspec.Struct, frozen=True):
    resize: tuple[Size, Size] | None = None
    eof: bool = False


class Exit(msgspec.Struct, frozen=True):
    exit: int


async def run(call: routes.Call) -> None:
    query = call.query(ExecQuery)
    job = await call.access.job(call.path["job"])
    live = job.live
    if live is None:
        raise errors.Conflict(f"{job.name} does not run: {job.phase}.", hint=instead(job, call.path["job"]))
    task = _task(live, query)
    _check_there(job, live, task, call.path["job"])
    socket = Socket(call.receive, call.send)
    await socket.accept()
    try:
        process = await call.services.exec(
            task.key(job.id, live.number),
            await socket.arguments(),
            tty=query.tty,
            rows=query.rows,
            columns=query.columns,
        )
    except errors.OarlockError as error:
        await socket.text(failures.body(error))
        await socket.close()
        return
    except Gone:
        return
    await converse(socket, process)


def instead(job: jobs.Job, asked: str) -> str:
    """Return the next step for a job without a running attempt, which was `asked` for by name or id."""
    if job.terminal:
        if job.spec.freeze is None or job.phase is not phases.Phase.FAILED:
            return "With --freeze 30m, a job that fails keeps its place, so that you can look inside."
        return f"Its place was kept for {_freeze(job)} after the failure, or until it was canceled."
    if job.phase is phases.Phase.HALTED:
        return f"Resume it: oarlock resume {asked}"
    return f"It waits. See why: oarlock why {asked}"


def _check_there(job: jobs.Job, live: attempts.Attempt, task: attempts.Task, asked: str) -> None:
    """Raise Conflict for a task that has ended, unless it is the kept task of a frozen job."""
    if task.phase not in phases.ENDED or (task.phase is phases.TaskPhase.FAILED and live.frozen_until is not None):
        return
    if live.frozen_until is not None:
        hint = f"{live.stop_task} failed, and is kept: oarlock exec {asked} -- sh"
    elif job.spec.freeze is not None:
        hint = f"`freeze: {_freeze(job)}` keeps the task that failed and so ended the job."
    else:
        hint = "With --freeze 30m, a job that fails keeps its place, so that you can look inside."
    raise errors.Conflict(f"{task.name} has ended: {task.phase}.", hint=hint)


def _freeze(job: jobs.Job) -> str:
    """Return the duration as the job file has it."""
    asked = job.spec.freeze
    return asked if isinstance(asked, str) else f"{asked:g}s"


def _task(live: attempts.Attempt, query: ExecQuery) -> attempts.Task:
    """Return the task that the query names; by default the failed task of a frozen job, else the chief or first worker.

    Raises NotFound.
    """
    if query.role is None and query.index is None and live.frozen_until is not None:
        failed = next((task for task in live.tasks if task.name == live.stop_task), None)
        if failed is not None:
            return failed
    order = [query.role] if query.role is not None else [roles.RoleName.CHIEF, roles.RoleName.WORKER, *roles.RoleName]
    index = query.index or 0
    for role in order:
        task = live.task(role, index)
        if task is not None:
            return task
    asked = f"{query.role or 'worker'}-{index}"
    raise errors.NotFound(
        f"There is no task {asked}.", hint=f"The job has {', '.join(one.name for one in live.tasks[:20])}."
    )


async def converse(socket: Socket, process: backends.ExecProcess) -> None:
    """Relay both directions until the command has ended or the client has left."""
    speaking = asyncio.create_task(_speak(socket, process))
    hearing = asyncio.create_task(_hear(socket, process))
    try:
        await asyncio.wait((speaking, hearing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = speaking.done()
        for task in (speaking, hearing):
            task.cancel()
        await asyncio.gather(speaking, hearing, return_exceptions=True)
        if not ended or speaking.cancelled() or speaking.exception() is not None:
            await process.kill()


async def _speak(socket: Socket, process: backends.ExecProcess) -> None:
    async for stream, data in process.output():
        if stream == "exit":
            await socket.text(msgspec.json.encode(Exit(int(data))))
            await socket.close()
            return
        await socket.binary(_STREAMS[stream] + data)


async def _hear(socket: Socket, process: backends.ExecProcess) -> None:
    """Relay input until the client leaves. An invalid message ends the session with an error."""
    try:
        while True:
            message = await socket.receive()
            if isinstance(message, bytes):
                if message[:1] == b"\x00":
                    await process.write(message[1:])
                continue
            control = routes.decode_body(message.encode(), Control)
            if control.resize is not None:
                await process.resize(*control.resize)
            if control.eof:
                await process.close_stdin()
    except Gone:
        return
    except errors.OarlockError as error:
        await socket.text(failures.body(error))
        await socket.close()


class Gone(Exception):
    """The client has left."""


class Socket:
    """A web socket, with the few messages of ASGI that this module needs."""

    def __init__(self, receive: types.Receive, send: types.Send) -> None:
        self._receive = receive
        self._send = send

    async def accept(self) -> None:
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept", "headers": []})

    async def arguments(self) -> list[str]:
        """Return the first message, the argv list. Raises InvalidInput for another message."""
        try:
            async with asyncio.timeout(FIRST_MESSAGE_S):
                first = await self.receive()
        except TimeoutError as error:
            raise errors.InvalidInput(
                f"No command came within {FIRST_MESSAGE_S:g} s.", hint="Send the argv list first."
            ) from error
        raw = first.encode() if isinstance(first, str) else first
        arguments: list[str] = routes.decode_body(raw, list[str])
        if not arguments or len(arguments) > MAX_ARGUMENTS or not arguments[0]:
            raise errors.InvalidInput("The command is empty or too long.", hint="Send the argv list first.")
        for argument in arguments:
            validation.text(argument)
        return arguments

    async def receive(self) -> str | bytes:
        message: dict[str, Any] = dict(await self._receive())
        if message["type"] == "websocket.disconnect":
            raise Gone
        data = message.get("bytes")
        return data if data is not None else message.get("text") or ""

    async def text(self, data: bytes) -> None:
        await self._send({"type": "websocket.send", "text": data.decode()})

    async def binary(self, data: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": data})

    async def close(self) -> None:
        await self._send({"type": "websocket.close", "code": 1000})


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="WS",
        path="/api/v1/jobs/{job}/exec",
        handler=run,
        needs=users.Right.USER,
        summary="a command inside a running or frozen task",
        query=ExecQuery,
        long=True,
    ),
)
