"""The thread that sends goes on after whatever made it stumble, and there is never a second one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from oarlock.agent import agentstate, assignment, journal
from oarlock.agent.protocol import client, shipping, stream


def test_what_stumbles_goes_on_and_a_start_meanwhile_makes_no_second_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "STUMBLED_PAUSE_S", 0.0)
    task = assignment.Assignment(str(tmp_path), {"key": "j-1/1/worker/0/1", "command": "true"})
    told = agentstate.AgentState()
    threads: set[threading.Thread] = set()
    begun = threading.Event()
    turns = 0

    class Stumbling(shipping.Shipper):
        def _turn(self, server: client.Client) -> int:
            nonlocal turns
            turns += 1
            threads.add(threading.current_thread())
            begun.set()
            self.start()
            if turns < 4:
                raise ZeroDivisionError
            told.delivered = True
            return 0

    shipper = Stumbling(task, lambda: client.Client(task, told.contact), told, journal.Journal(str(tmp_path / "log")))
    shipper.start()
    assert begun.wait(240)
    for thread in tuple(threads):
        thread.join(240)
        assert not thread.is_alive()
    assert (turns, len(threads), told.delivered) == (4, 1, True)
    assert (tmp_path / "log").read_text().count("stumbled: ZeroDivisionError") == 3


def test_a_task_that_prints_much_is_sent_without_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At one batch for each pause a job that has ended would wait for its log."""
    monkeypatch.setattr(stream, "BATCH_BYTES", 10)
    task = assignment.Assignment(str(tmp_path), {"key": "j-1/1/worker/0/1", "command": "true"})
    told = agentstate.AgentState()
    shipper = shipping.Shipper(
        task, lambda: client.Client(task, told.contact), told, journal.Journal(str(tmp_path / "log"))
    )
    printed = tmp_path / "stdout.0"
    file = stream.Stream("stdout.0", str(printed), None)
    shipper._logs = [file]
    pauses: list[float] = []
    monkeypatch.setattr(shipper._wake, "wait", pauses.append)
    printed.write_bytes(b"x" * 35)
    for _ in range(4):
        file.batch(False)
        file.acknowledge(file.acknowledged + 10)
        shipper._rest(1, 0.0)
    assert pauses == [shipping.REQUEST_SPACING_S] * 2, "only once less than a batch was left"
