"""The start of a parameter server's process."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest

from oarlock.train.servers import __main__ as command
from oarlock.train.servers import children
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


@pytest.mark.parametrize(
    ("arguments", "process", "gpus", "device"),
    [
        (["--child", "0"], "1", 2, "cuda:0"),
        (["--child", "1"], "0", 2, "cuda:1"),
        (["--child", "3"], "0", 2, "cuda:1"),
        (["--child", "1"], "0", 0, "cpu"),
        ([], "1", 2, "cuda:1"),
        ([], "", 2, "cuda:0"),
    ],
)
def test_the_servers_of_one_machine_take_its_gpus_in_turn(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], process: str, gpus: int, device: str
) -> None:
    """All of them would hold their parts of the model on the first one."""
    found: list[str] = []

    class Made:
        port = 1

        def __init__(self, *_: Any, device: str, **__: Any) -> None:
            found.append(device)

        def serve(self) -> None:
            pass

    monkeypatch.setattr(command.server, "Server", Made)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr(command, "_end_with_parent", lambda *_: None)
    monkeypatch.setattr(command.sys, "stdin", io.StringIO("the token\n"))
    monkeypatch.setattr(optimizers, "prepare", lambda: None)
    monkeypatch.setattr(command.torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(command.torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("OARLOCK_SERVER", "127.0.0.1:0")
    monkeypatch.setenv("OARLOCK_SERVERS_TOKEN", "x")
    monkeypatch.setenv("OARLOCK_PROCESS", process)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert command.main(arguments) == 0
    assert found == [device]


def test_a_chief_gives_its_servers_different_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Child:
        def __init__(self, arguments: list[str], **_: Any) -> None:
            started.append(arguments[-2:])
            self.stdin, self.stdout = io.StringIO(), io.StringIO("5\n")

    monkeypatch.setattr(children.subprocess, "Popen", Child)
    monkeypatch.setattr(children, "_children", [])
    monkeypatch.setattr(children.atexit, "register", lambda *_: None)
    made = children.start(3)
    assert started == [["--child", "0"], ["--child", "1"], ["--child", "2"]]
    assert made.servers == ("127.0.0.1:5",) * 3
