"""The start of a parameter server's process."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from oarlock.train.servers import __main__ as command
from oarlock.train.servers.model import optimizers


def test_a_server_prepares_for_optimizers_while_it_waits_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import takes seconds. Otherwise all workers would wait for it in the step that tries the servers."""
    prepared = threading.Event()

    class Waiting:
        port = 1

        def __init__(self, *_: Any, **__: Any) -> None:
            assert not prepared.is_set(), "it listens first"

        def serve(self) -> None:
            assert prepared.wait(10.0), "no worker has asked for anything"

    monkeypatch.setattr(command.server, "Server", Waiting)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr(optimizers, "prepare", prepared.set)
    monkeypatch.setenv("OARLOCK_SERVER", "127.0.0.1:0")
    monkeypatch.setenv("OARLOCK_SERVERS_TOKEN", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert command.main([]) == 0
