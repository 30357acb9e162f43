"""The command `agent.pyz --bridge HOST:PORT`: its input and output become those of a connection to this address.

A server runs it in the pod of a TensorBoard, which listens at the loopback address alone. Exit status 0: the connection
has ended. 1: nothing listens there, and stderr says why.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

PATIENCE_S = 60.0
"""TensorBoard takes a while from its start until it listens."""
PAUSE_S = 0.2
IDLE_S = 600.0
"""A connection without a byte for so long ends: the other side may be gone without a word."""
_CHUNK_BYTES = 1 << 15


def bridge(address: str, patience_s: float = PATIENCE_S) -> int:
    try:
        there = _connected(address, time.monotonic() + patience_s)
    except OSError as error:
        sys.stderr.write(f"nothing listens at {address}: {error}\n")
        return 1
    with there:
        threading.Thread(target=_send, args=(there,), daemon=True).start()
        try:
            while True:
                data = there.recv(_CHUNK_BYTES)
                if not data:
                    return 0
                _write(data)
        except OSError:
            return 0


def _connected(address: str, deadline: float) -> socket.socket:
    """Connect as soon as something listens. Raise OSError after the deadline."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            return socket.create_connection((host.strip("[]"), int(port)), timeout=IDLE_S)
        except OSError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(PAUSE_S)


def _send(there: socket.socket) -> None:
    """Pass the input on. Its end is the end of the connection: the client has left."""
    try:
        while True:
            data = os.read(0, _CHUNK_BYTES)
            if not data:
                there.shutdown(socket.SHUT_RDWR)
                return
            there.sendall(data)
    except OSError:
        return


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
