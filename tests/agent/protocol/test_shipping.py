"""The thread that sends goes on after whatever made it stumble, and there is never a second one."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from oarlock.agent import agentstate, assignment, journal
from oarlock.agent.protocol import blanking, client, shipping, stream


def test_a_thread_that_fails_goes_on_and_a_start_meanwhile_makes_no_second_one(
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


class Server:
    """The server's requests, in order, and its answers: `answers` holds those that differ from the usual one."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.stored: dict[str, bytearray] = defaultdict(bytearray)
        self.answers: list[tuple[int, object]] = []

    def ask(self, method: str, path: str, body: Any = None) -> client.Answer:
        assert method == "POST"
        self.heard.append((path, body))
        if self.answers:
            status, value = self.answers.pop(0)
            return client.Answer(status, json.dumps(value).encode())
        if path == "/report":
            return client.Answer(200, b"{}")
        name, _, offset = path.partition("?offset=")
        assert int(offset) == len(self.stored[name])
        self.stored[name] += body
        return client.Answer(200, b'{"length": %d}' % len(self.stored[name]))

    def reports(self) -> list[dict[str, Any]]:
        return [body for path, body in self.heard if path == "/report"]


class Clock:
    """The time as the shipper sees it: it stands still, however slow the machine is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Rig:
    """A shipper whose turns a test makes, its state, and the server that it sends to."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        self.task = assignment.Assignment(str(folder), {"key": "j-1/1/worker/0/1", "command": "true"})
        (folder / "report").mkdir()
        self.state = agentstate.AgentState()
        self.server = Server()

        def connect() -> Any:
            return self.server  # a part of a client is enough

        self.shipper = shipping.Shipper(self.task, connect, self.state, journal.Journal(f"{folder}/log"))
        self.state.blanker = blanking.Blanker(["secret"])

    def turn(self) -> int:
        server: Any = self.server
        return self.shipper._turn(server)

    def end(self, code: int = 0) -> dict[str, Any]:
        """Let the task end: its files do not grow any more, and there is an exit record."""
        self.state.exit = {"code": code, "killed_by_us": False}
        self.state.ended = True
        return self.state.exit

    def journal(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def rigged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    clock = Clock()
    monkeypatch.setattr(shipping, "time", clock)
    return Rig(tmp_path, clock)


def test_one_turn_sends_each_stream_to_its_place_and_a_report(rigged: Rig) -> None:
    (rigged.folder / "stdout.0").write_bytes(b"a secret\n")
    (rigged.folder / "stderr.0").write_bytes(b"oh\n")
    (rigged.folder / "report/metrics-0.bin").write_bytes(b"m secret")
    rigged.state.phase = "PROCESSING"
    assert rigged.turn() == 4, "one pause for each request"
    assert [path for path, _ in rigged.server.heard] == [
        "/logs/stdout.0?offset=0",
        "/logs/stderr.0?offset=0",
        "/metrics/0?offset=0",
        "/report",
    ]
    assert rigged.server.stored == {
        "/logs/stdout.0": b"a ******\n",
        "/logs/stderr.0": b"oh\n",
        "/metrics/0": b"m secret",  # numbers hold no secrets
    }
    (report,) = rigged.server.reports()
    assert report["phase"] == "PROCESSING"
    assert report["idle_s"] == 0.0
    rigged.clock.now += 3.0
    assert rigged.turn() == 0, "nothing is new"
    rigged.clock.now += 2.0
    assert rigged.turn() == 1, "a sign of life"
    assert rigged.server.reports()[-1] == {"idle_s": 5.0}
    assert not rigged.state.delivered


def test_no_log_is_sent_before_its_secrets_are_known(rigged: Rig) -> None:
    rigged.state.blanker = None
    (rigged.folder / "stdout.0").write_bytes(b"a secret\n")
    assert rigged.turn() == 1
    assert [path for path, _ in rigged.server.heard] == ["/report"]


ANSWERS = {  # to a batch of five bytes -> acknowledged, refusals, whether the journal tells of one
    "all are stored": (200, {"length": 5}, 5, 0, False),
    "a part is stored": (200, {"length": 3}, 3, 0, False),
    "it has some already": (409, {"length": 2}, 2, 0, False),
    "none is stored": (200, {"length": 0}, 0, 1, False),
    "too much": (413, {"error": "too much", "length": 5}, 0, 1, True),
    "no length": (200, {}, 0, 1, True),
    "a length that is none": (409, {"length": "5"}, 0, 1, True),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_the_servers_length_counts(rigged: Rig, case: str) -> None:
    status, value, acknowledged, refusals, said = ANSWERS[case]
    (rigged.folder / "stdout.0").write_bytes(b"12345")
    rigged.server.answers = [(status, value)]
    rigged.turn()
    (file, _) = rigged.shipper._logs
    assert (file.acknowledged, file.refusals) == (acknowledged, refusals)
    quiet_s = shipping.REFUSED_PAUSE_S if refusals else -rigged.clock.now
    assert file.quiet_until - rigged.clock.now == quiet_s, "a refused part is not repeated at once"
    assert (f"/logs/stdout.0 was refused with {status}" in rigged.journal()) is said


def test_the_end_is_told_once_everything_before_it_is(rigged: Rig) -> None:
    (rigged.folder / "stdout.0").write_bytes(b"last\n")
    rigged.server.answers = [(200, {"length": 0})]
    record = rigged.end()
    assert rigged.turn() == 2
    assert "exit" not in rigged.server.reports()[0], "its log is not there yet"
    rigged.clock.now += shipping.REQUEST_SPACING_S
    rigged.turn()
    assert [body.get("exit") for body in rigged.server.reports()] == [None, record]
    assert rigged.state.delivered
    assert rigged.server.stored["/logs/stdout.0"] == b"last\n"


@pytest.mark.parametrize(("code", "told"), [(0, False), (1, True)])
def test_a_failure_does_not_wait_long_for_its_log(rigged: Rig, code: int, told: bool) -> None:
    """Three seconds later it is told, and a good end is not."""
    (rigged.folder / "stdout.0").write_bytes(b"much\n")
    rigged.shipper._open_streams()
    rigged.end(code)
    assert rigged.shipper._exit_may_go(100.0) is False
    assert rigged.shipper._exit_may_go(100.0 + shipping.FAILURE_AFTER_S) is False
    assert rigged.shipper._exit_may_go(101.0 + shipping.FAILURE_AFTER_S) is told
    assert rigged.shipper._exit_may_go(101.0 + shipping.GOOD_END_AFTER_S) is True


def test_it_is_delivered_only_with_the_kept_files(rigged: Rig) -> None:
    rigged.end()
    rigged.state.keeping = True
    rigged.turn()
    assert rigged.server.reports()[-1]["exit"] == rigged.state.exit
    assert not rigged.state.delivered, "the files are still being kept"
    rigged.state.kept, rigged.state.keeping = {"files": 2}, False
    rigged.turn()
    assert rigged.server.reports()[-1]["kept"] == {"files": 2}
    assert rigged.state.delivered


def test_an_exit_that_is_refused_is_told_alone_and_not_for_ever(rigged: Rig) -> None:
    rigged.state.phase = "COMPLETED"
    record = rigged.end()
    rigged.server.answers = [(400, {"error": "a bad field"})] * 3
    delivered: list[bool] = []
    for _ in range(3):
        rigged.turn()
        delivered.append(rigged.state.delivered)
    first, *others = rigged.server.reports()
    assert (first["exit"], first["phase"]) == (record, "COMPLETED")
    assert others == [{"exit": record}] * 2, "another fact may have caused the refusal"
    assert delivered == [False, False, True]
    assert rigged.journal().count("a report was refused with 400: a bad field") == 3


def test_bytes_that_the_server_lost_are_sent_again(rigged: Rig) -> None:
    (rigged.folder / "stdout.0").write_bytes(b"12345")
    rigged.turn()
    rigged.server.stored["/logs/stdout.0"] = bytearray(b"12")
    rigged.shipper._send_again({"stdout.0": 2, "stderr.0": 7, "strange": 0})
    rigged.turn()
    assert rigged.server.stored["/logs/stdout.0"] == b"12345"
    assert [file.acknowledged for file in rigged.shipper._logs] == [5, 0]
    assert rigged.journal().count("asks for it again") == 1
