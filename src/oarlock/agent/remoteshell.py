"""The remote shell of MPI jobs: `mpirun` in the launcher's pod starts its daemons in the worker pods.

    agent.pyz --shell DIR HOST COMMAND...   in place of ssh: run the command by `sh` in the task at HOST
    agent.pyz --serve-shell DIR             the process of a worker: run such commands, until the task ends

The worker listens on the first port of its task. The two share a token of the attempt. The worker sends a nonce, and
takes one command whose HMAC over nonce and command holds; output comes back in frames, then the exit status. The token
itself is never sent. Where the connection ends early, the command's processes are killed.

Hydra (MPICH, Intel MPI) tells its daemons to call back at the name of the launcher's machine. No other pod can look up
the name of a pod, so the launcher's address takes its place.

Any pod may reach the port. So a connection has `HANDSHAKE_S` in all to prove itself, and where too many have not done
so, the oldest of them is closed: the launcher needs only a moment.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oarlock.agent.assignment import Assignment

TOKEN = "OARLOCK_SHELL_TOKEN"
OUT, ERR, EXIT = 1, 2, 3
HEADER = struct.Struct("!BI")
NONCE_BYTES = 32
COMMAND_BYTES = 1 << 18  # Linux takes 128 KiB as one argument
UNPROVED = 64  # connections at once
READ_BYTES = 1 << 16
HANDSHAKE_S = 10.0
PATIENCE_S = 60.0  # for a worker whose process has not started yet
AGAIN_S = 0.2
CALLBACKS = ("--control-port", "--upstream-host")  # options of Hydra's daemons: a name, or NAME:PORT
FAILED = 255  # the code that ssh has for its own failures


def serve(task: Assignment) -> int:
    """Run commands for the launcher until this process is killed."""
    token = task.env[TOKEN].encode()
    family = socket.AF_INET6 if ":" in task.address else socket.AF_INET
    unproved = _Unproved()
    with socket.create_server((task.address, task.ports[0]), family=family) as listener:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # no descriptor is left, or the connection has gone
                time.sleep(AGAIN_S)
                continue
            unproved.add(connection)
            try:
                threading.Thread(target=_answer, args=(connection, token, unproved), daemon=True).start()
            except RuntimeError:  # no thread is left
                unproved.remove(connection)
                connection.close()


class _Unproved:
    """The connections that have not proved themselves, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._there: dict[socket.socket, None] = {}

    def add(self, connection: socket.socket) -> None:
        with self._lock:
            self._there[connection] = None
            if len(self._there) > UNPROVED:
                _end(self._there, next(iter(self._there)))

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._there.pop(connection, None)


def _end(there: dict[socket.socket, None], oldest: socket.socket) -> None:
    """End the connection; its thread notices."""
    del there[oldest]
    with contextlib.suppress(OSError):
        oldest.shutdown(socket.SHUT_RDWR)


def _answer(connection: socket.socket, token: bytes, unproved: _Unproved) -> None:
    with connection:
        try:
            try:
                command = _hear(connection, token)
            finally:
                unproved.remove(connection)
            if command is not None:
                _run(connection, command)
        except OSError:
            pass  # the other side has gone


def _hear(connection: socket.socket, token: bytes) -> str | None:
    """Return the command, or None if it does not come from the launcher of this attempt."""
    until = time.monotonic() + HANDSHAKE_S
    connection.settimeout(HANDSHAKE_S)
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(nonce)
    proof = _exactly(connection, hashlib.sha256().digest_size, until)
    (length,) = struct.unpack("!I", _exactly(connection, 4, until))
    if length > COMMAND_BYTES:
        return None
    said = _exactly(connection, length, until)
    connection.settimeout(None)
    return str(json.loads(said.decode())) if hmac.compare_digest(proof, _proof(token, nonce, said)) else None


def _proof(token: bytes, nonce: bytes, said: bytes) -> bytes:
    return hmac.new(token, nonce + said, hashlib.sha256).digest()


def _run(connection: socket.socket, command: str) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        kinds = {child.stdout.fileno(): OUT, child.stderr.fileno(): ERR}
        try:
            with selectors.DefaultSelector() as ready:
                for fd in (*kinds, connection.fileno()):
                    ready.register(fd, selectors.EVENT_READ)
                while kinds:
                    found = [key.fd for key, _ in ready.select()]
                    if connection.fileno() in found:  # nothing more is said: its end has come
                        raise ConnectionAbortedError
                    for fd in found:
                        data = os.read(fd, READ_BYTES)
                        if data:
                            connection.sendall(HEADER.pack(kinds[fd], len(data)) + data)
                        else:
                            ready.unregister(fd)
                            del kinds[fd]
            code = child.wait()
        except OSError:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    connection.sendall(HEADER.pack(EXIT, code if code >= 0 else 128 - code))


def shell(task: Assignment, host: str, words: list[str]) -> int:
    """Run the words, joined as ssh joins them, in the task at `host`. Return the command's status; 255 as ssh."""
    try:
        with _connected(host, task.ports[0]) as connection:
            nonce = _exactly(connection, NONCE_BYTES)
            said = json.dumps(" ".join(with_address(words, socket.gethostname(), task.address))).encode()
            proof = _proof(task.env[TOKEN].encode(), nonce, said)
            connection.sendall(proof + struct.pack("!I", len(said)) + said)
            while True:
                kind, size = HEADER.unpack(_exactly(connection, HEADER.size))
                if kind == EXIT:
                    return int(size)
                data = _exactly(connection, size)
                stream = sys.stdout if kind == OUT else sys.stderr
                stream.buffer.write(data)
                stream.buffer.flush()
    except (OSError, KeyError) as error:
        sys.stderr.write(f"oarlock: the task at {host} cannot run a command: {error!r}\n")
        return FAILED


def with_address(words: list[str], name: str, address: str) -> list[str]:
    """Return the words, with the address in the place of the name at which a daemon of Hydra is to call back."""
    found = list(words)
    for place, option in enumerate(words[:-1]):
        host, colon, port = words[place + 1].partition(":")
        if option in CALLBACKS and host == name and address:
            found[place + 1] = address + colon + port
    return found


def _connected(host: str, port: int) -> socket.socket:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(AGAIN_S)


def _exactly(connection: socket.socket, size: int, until: float | None = None) -> bytes:
    """Return so many bytes. Raises OSError at the time `until` (monotonic), and where the connection ends."""
    parts = b""
    while len(parts) < size:
        if until is not None:
            connection.settimeout(max(0.001, until - time.monotonic()))
        part = connection.recv(min(READ_BYTES, size - len(parts)))
        if not part:
            raise ConnectionResetError("the connection ended")
        parts += part
    return parts
