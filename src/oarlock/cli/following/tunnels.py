"""A port of this machine that leads to the TensorBoard of a job in the cluster, through the server.

Each connection to the port is one web socket of the server's, with this user's token: no other program of the cluster
reaches the TensorBoard. The port listens at the loopback address.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oarlock.cli.output import terminal
from oarlock.client import execution
from oarlock.spec import bodies, errors

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients
    from oarlock.client.synchronous import session as sessions

LOOK_S = 2.0
PORT = 6006


def await_running(client: clients.Client, job: str) -> bool:
    """Wait until the TensorBoard beside the job runs. Return False where the job has none."""
    told = ""
    while True:
        board = client.tensorboard(job)
        if board.state is not bodies.TensorBoardState.STARTING:
            return board.state is bodies.TensorBoardState.RUNNING
        if board.reason != told:
            told = board.reason
            terminal.say(f"TensorBoard does not run yet: {terminal.clean(told)}")
        time.sleep(LOOK_S)


@contextlib.contextmanager
def opened(client: clients.Client, job: str, port: int | None) -> Iterator[int]:
    """Listen at the port while the block runs; without one at 6006, else at any free port. Yield its number."""
    server = _listening(client, job, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    client: clients.Client
    job: str


class _Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Listener)
        here: socket.socket = self.request
        left = threading.Event()
        try:
            with self.server.client.tensorboard_connection(self.server.job) as there:
                threading.Thread(target=_send, args=(here, there, left), daemon=True).start()
                _receive(here, there)
        except errors.OarlockError as error:
            if not left.is_set():
                terminal.say(f"The connection to TensorBoard failed: {terminal.clean(error.message)}")
        except OSError:
            return  # the browser has left


def _send(here: socket.socket, there: sessions.Session, left: threading.Event) -> None:
    """Send what the browser says. Its end is the end of the connection."""
    with contextlib.suppress(OSError):
        while data := here.recv(execution.CHUNK_BYTES):
            there.send(data)
    left.set()
    there.close()


def _receive(here: socket.socket, there: sessions.Session) -> None:
    for item in there.output():
        if isinstance(item, execution.Output) and item.stream == "stdout":
            here.sendall(item.data)
        elif isinstance(item, execution.Output):
            terminal.say(terminal.clean(item.data.decode(errors="replace").strip()))


def _listening(client: clients.Client, job: str, port: int | None) -> _Listener:
    failure: OSError | None = None
    for number in (port,) if port is not None else (PORT, 0):
        try:
            made = _Listener(("127.0.0.1", number), _Connection)
        except OSError as error:
            failure = error
            continue
        made.client, made.job = client, job
        return made
    raise errors.Unavailable(
        f"port {port} cannot be used: {failure.strerror if failure else ''}", hint="Name another one: --port N"
    )
