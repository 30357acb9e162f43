"""The real server process: its home, its address, its refusals, its end and its successor."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import marks

from oarlock import main
from oarlock.spec import errors, plans

START_S = 240.0


class Server:
    """A server in a process of its own, spoken to over its socket."""

    def __init__(self, home: Path, *flags: str, env: dict[str, str] | None = None, first: str = "") -> None:
        """`first` is a program that runs in the server's process before it."""
        self.home = home
        begin = ["-c", f"{first}\nimport sys\nfrom oarlock import main\nsys.exit(main.main(sys.argv[1:]))"]
        self.process = subprocess.Popen(
            [sys.executable, *(begin if first else ["-m", "oarlock.main"]), *flags],
            env={**os.environ, "OARLOCK_HOME": str(home), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ready(self) -> Server:
        wait_for(lambda: self.process.poll() is not None or self._listens())
        assert self.process.poll() is None, self.output()
        return self

    def _listens(self) -> bool:
        try:
            return self.told()["pid"] == self.process.pid
        except (OSError, ValueError):
            return False

    def told(self) -> dict[str, Any]:
        return json.loads((self.home / "server.json").read_text())

    @property
    def port(self) -> int:
        return int(self.told()["url"].rpartition(":")[2])

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """The status, and the body as JSON where it is (unless asked for as it is, by `raw`)."""
        as_it_is = headers.pop("raw", None) is not None
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=280)
        with contextlib.closing(connection):
            told = {"Authorization": f"Bearer {(self.home / 'token').read_text().strip()}", **headers}
            connection.request(method, path, body if body is None else json.dumps(body), told)
            answer = connection.getresponse()
            raw = answer.read()
        return answer.status, json.loads(raw) if raw.startswith(b"{") and not as_it_is else raw.decode()

    def lines(self, path: str) -> list[dict[str, Any]]:
        _, text = self.ask("GET", path, raw="")
        return [json.loads(line) for line in text.splitlines()]

    def raw(self, data: bytes, *, shut: bool = True) -> bytes:
        """Send bytes as they are. Return the answer until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=280) as sock:
            sock.sendall(data)
            parts = []
            with contextlib.suppress(OSError):
                if shut:
                    sock.shutdown(socket.SHUT_WR)
                while part := sock.recv(65536):
                    parts.append(part)
        return b"".join(parts)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=280)

    def output(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=280)
        if self.process.stdout is not None:
            self.process.stdout.close()


def wait_for(true: Callable[[], Any]) -> Any:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        found = true()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come true")


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def begin(*flags: str, **more: Any) -> Server:
        made.append(Server(more.pop("home", home), *flags, **more))
        return made[-1]

    yield begin
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that no test ends or hinders."""
    one = Server(tmp_path_factory.mktemp("shared") / "home").ready()
    yield one
    one.close()


def test_a_first_start_makes_a_home_that_only_its_owner_reads(start: Callable[..., Server], home: Path) -> None:
    server = start().ready()
    for name in ("token", "task-secret", "server.json", "oarlock.db", "server.log"):
        assert stat.S_IMODE((home / name).stat().st_mode) & 0o077 == 0, name
    status, said = server.ask("GET", "/api/v1/server")
    assert (status, said["right"], said["url"]) == (200, "admin", server.told()["url"])
    assert server.ask("GET", "/api/v1/server", Authorization="Bearer no")[0] == 401
    wait_for(lambda: server.ask("GET", "/readyz")[0] == 200)
    token = (home / "token").read_text().strip()
    database = b"".join(path.read_bytes() for path in home.glob("oarlock.db*"))
    assert token.encode() not in database
    assert token not in (home / "server.log").read_text()


def test_the_pages_are_there_beside_the_api(shared: Server) -> None:
    status, page = shared.ask("GET", "/login", raw="")
    assert status == 200
    assert "<title>" in page


def test_a_job_runs_and_its_log_arrives(shared: Server) -> None:
    server = shared
    wait_for(lambda: server.ask("GET", "/readyz")[0] == 200)
    spec = {"command": "echo hello from $OARLOCK_ROLE; exit 3", "framework": "plain", "max_restarts": 0, "name": "hi"}
    status, job = server.ask("POST", "/api/v1/jobs", {"spec": spec})
    assert status == 201, job
    told = server.lines("/api/v1/jobs/hi/logs?follow=true")
    assert [line.get("text") for line in told[:-1]] == ["hello from worker"]
    assert told[-1] == {"end": {"phase": "FAILED", "exit_code": 3}}


def test_it_is_not_ready_while_nothing_can_be_written(start: Callable[..., Server]) -> None:
    """No file may grow any more: as on a full disk, and for any user. Then it may again."""
    server = start().ready()
    wait_for(lambda: server.ask("GET", "/readyz")[0] == 200)
    pid, limits = server.process.pid, resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    wait_for(lambda: server.ask("GET", "/readyz")[0] == 503)
    problems = wait_for(lambda: server.ask("GET", "/readyz")[1].get("problems"))
    assert set(problems) >= {"store", "home", "blobs", "logs", "metrics"}
    status, said = server.ask("POST", "/api/v1/jobs", {"spec": {"command": "true", "framework": "plain"}})
    assert status == 503, said
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    wait_for(lambda: server.ask("GET", "/readyz")[0] == 200)
    assert server.ask("POST", "/api/v1/jobs", {"spec": {"command": "true", "framework": "plain"}})[0] == 201


TURNED = """
import os, time
wall, turned = time.time, os.path.join(os.environ["OARLOCK_HOME"], "turned")
def turned_s():
    try:
        with open(turned) as file:
            return float(file.read() or 0)
    except FileNotFoundError:
        return 0.0
time.time = lambda: wall() + turned_s()
"""
"""The server's wall clock: ahead of the machine's by the file's number."""


@pytest.mark.long
def test_a_wall_clock_that_is_set_ends_no_job(start: Callable[..., Server], home: Path) -> None:
    """While the server lives, forward and back, and while none does."""
    server = start(first=TURNED).ready()
    go = home / "go"
    command = f"for _ in $(seq 3000); do [ -e {go} ] && break; sleep 0.1; done"
    spec = {"command": command, "framework": "plain", "timeout": "20m", "name": "on"}
    assert server.ask("POST", "/api/v1/jobs", {"spec": spec})[0] == 201
    wait_for(lambda: server.ask("GET", "/api/v1/jobs/on")[1]["phase"] == "PROCESSING")
    for by_s in (3600, -7200):
        turn(home, by_s)
        wait_for(lambda by_s=by_s: by_s in steps(server))
    server.end()
    turn(home, 10_000_000)
    after = start(first=TURNED).ready()
    wait_for(lambda: len(steps(after)) == 3)
    assert after.ask("GET", "/api/v1/jobs/on")[1]["phase"] == "PROCESSING"
    assert abs(after.ask("GET", "/api/v1/jobs/on")[1]["phase_at"] - time.time() - 10_000_000) < 600
    go.touch()
    wait_for(lambda: after.ask("GET", "/api/v1/jobs/on")[1]["phase"] == "COMPLETED")
    assert len(after.ask("GET", "/api/v1/jobs/on")[1]["attempts"]) == 1


def turn(home: Path, by_s: float) -> None:
    draft = home / "turned.draft"
    draft.write_text(str(by_s))
    draft.replace(home / "turned")


def steps(server: Server) -> list[float]:
    """By how much the server's clock is ahead of the machine's after each step that it has noticed."""
    items = server.ask("GET", "/api/v1/jobs/on/events?after=0")[1]["items"]
    found = [one["data"]["by_s"] for one in items if one["kind"] == "clock_stepped"]
    return [round(sum(found[: place + 1])) for place in range(len(found))]


def test_one_server_for_a_home_and_two_homes_two_servers(
    start: Callable[..., Server], home: Path, tmp_path: Path
) -> None:
    first = start().ready()
    second = start()
    assert second.process.wait(timeout=280) == 1
    said = second.output()
    assert "already" in said
    assert first.told()["url"] in said
    assert "oarlock down" in said
    other = start(home=tmp_path / "other").ready()
    assert other.port != first.port
    assert (other.home / "token").read_text() != (home / "token").read_text()


@pytest.mark.parametrize("number", marks.long_except([signal.SIGKILL], [signal.SIGTERM, signal.SIGKILL]))
def test_a_server_that_follows_has_the_port_the_token_and_the_jobs(
    start: Callable[..., Server], home: Path, number: int
) -> None:
    server = start().ready()
    wait_for(lambda: server.ask("GET", "/readyz")[0] == 200)
    port, token = server.port, (home / "token").read_text()
    unnamed = {"spec": {"command": "true", "framework": "plain"}}
    keyed = server.ask("POST", "/api/v1/jobs", unnamed, **{"Idempotency-Key": "k"})[1]
    release = home / "release"
    command = f"echo before; for _ in $(seq 6000); do [ -e {release} ] && break; sleep 0.05; done; echo after"
    status, job = server.ask("POST", "/api/v1/jobs", {"spec": {"command": command, "framework": "plain", "name": "on"}})
    assert status == 201, job
    wait_for(lambda: server.ask("GET", "/api/v1/jobs/on")[1]["phase"] == "PROCESSING")
    code = server.end(number)
    assert code == (0 if number == signal.SIGTERM else -9)
    assert (home / "server.json").exists() == (number == signal.SIGKILL)
    release.touch()
    after = start().ready()
    assert (after.port, (home / "token").read_text()) == (port, token)
    again = after.ask("POST", "/api/v1/jobs", unnamed, **{"Idempotency-Key": "k"})
    assert (again[0], again[1].get("id")) == (200, keyed["id"]), "a key is the record's, not one server's"
    told = after.lines("/api/v1/jobs/on/logs?follow=true")
    assert [line.get("text") for line in told] == ["before", "after", None]
    assert told[-1] == {"end": {"phase": "COMPLETED", "exit_code": 0}}
    _, shown = after.ask("GET", "/api/v1/jobs/on")
    assert len(shown["attempts"]) == 1


def test_long_polls_and_streams_do_not_hold_up_the_end(start: Callable[..., Server]) -> None:
    server = start().ready()
    status, _ = server.ask("POST", "/api/v1/jobs", {"spec": {"command": "sleep 60", "framework": "plain", "name": "s"}})
    assert status == 201
    connections = []
    token = (server.home / "token").read_text().strip()
    for path in ("/api/v1/jobs/s/logs?follow=true", "/api/v1/watch", "/api/v1/events?after=1000000&wait=60"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=280)
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        connections.append(connection)
    assert server.ask("PUT", "/api/v1/jobs/s/intent", {"intent": "cancel"})[0] == 200
    wait_for(lambda: server.ask("GET", "/api/v1/jobs/s")[1]["phase"] == "CANCELED")
    status, said = server.ask("POST", "/api/v1/shutdown")
    assert (status, said) == (202, {"ending": True})
    statuses = [connection.getresponse().status for connection in connections]
    assert statuses == [200, 200, 200], "each was answered, none was cut off"
    assert server.process.wait(timeout=280) == 0
    for connection in connections:
        connection.close()


def test_a_request_that_is_not_http_or_half_of_it_is_answered_or_closed(shared: Server) -> None:
    server = shared
    token = (server.home / "token").read_text().strip()
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n".encode()
    for data in (
        b"\0" * 100_000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        head + b"Content-Length: x\r\n\r\n{}",
        head + b"Content-Length: -1\r\n\r\n{}",
        head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        head + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
        head + b"Content-Length: 100\r\n\r\n{}",
        head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}",
        head + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        head + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ):
        answer = server.raw(data)
        assert not answer or answer[9:10] == b"4", (data[-40:], answer[:200])
    whole = server.raw(head + b"Content-Length: 2000000\r\nConnection: close\r\n\r\n" + b"x" * 2_000_000)
    assert b" 413 " in whole[:20]
    assert server.ask("GET", "/healthz")[0] == 200
    assert "request_failed" not in (server.home / "server.log").read_text()


def test_a_taken_port_is_named_and_a_remembered_one_is_left(start: Callable[..., Server], home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = start("--port", str(port))
        assert server.process.wait(timeout=280) == 1
        said = server.output()
        assert f"127.0.0.1:{port}" in said
        assert "--port" in said
        home.mkdir(exist_ok=True)
        (home / "server.port").write_text(str(port))
        assert start().ready().port != port


@pytest.mark.parametrize(
    ("file", "flags", "word"),
    [
        ("[server]\nprot = 7\n", [], "port"),
        ("[server]\nport = 'x'\n", [], "port"),
        ("[server\n", [], "config.toml"),
        ("server = 3\n", [], "server"),
        ("", ["--port", "70000"], "port"),
        ("", ["--tls-cert", "x.pem"], "tls_key"),
        ("", ["--tls-cert", "/no/x.pem", "--tls-key", "/no/x.key"], "/no/x.pem cannot be read: No such file"),
        ("[server]\ntls_ca = '/'\n", [], "/ cannot be read: Is a directory"),
        ("", ["--url", "gpu-box:7317"], "http://HOST:PORT"),
        ("[server]\nlog_level = 'LOUD'\n", [], "DEBUG"),
        ("", ["--host", "0.0.0.0"], "--tls-cert"),
        ("", ["--host", "::"], "--tls-cert"),
        ("", ["--policy", "las7"], "'las'"),
        ("[scheduler]\npolicy = 'fastest'\n", [], "there is no policy 'fastest'"),
        ("[scheduler]\nround = 60\n", [], "round_s"),
        ("[scheduler]\nround_s = -1\n", [], "round_s"),
        ("[scheduler]\nbackfill = 'perhaps'\n", [], "backfill"),
        ("[scheduler.las]\nband = 3\n", [], "policy las has no parameter"),
        ("[scheduler.sooner]\nfirst = 3\n", [], "there is no policy 'sooner'"),
        ("[scheduler.las]\nfirst_s = 'long'\n", [], "policies"),
        ("scheduler = 3\n", [], "scheduler"),
        ("private_jobs = true\n", [], "'private_jobs' stands where only tables may stand"),
        ("[sever]\nport = 7\n", [], "'sever'"),
    ],
)
def test_settings_that_cannot_be_meant_are_named(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    flags: list[str],
    word: str,
) -> None:
    """They are named before anything is started."""
    monkeypatch.setattr(main, "serve", lambda settings: pytest.fail(f"it takes {settings}"))
    home.mkdir()
    (home / "config.toml").write_text(file)
    assert main.main(flags) in (1, 2)
    said = capsys.readouterr().err
    assert "itself failed" not in said
    assert word in said


@pytest.mark.parametrize(
    ("file", "flags", "word"),
    [
        ("[server]\nprot = 7\n", [], "port"),
        pytest.param("", ["--database", "mysql://x"], "sqlite", marks=pytest.mark.long),
        pytest.param("", ["--virtual-nodes", "-1"], "", marks=pytest.mark.long),
    ],
)
def test_a_server_that_cannot_be_meant_ends_and_says_why(
    start: Callable[..., Server], home: Path, file: str, flags: list[str], word: str
) -> None:
    home.mkdir()
    (home / "config.toml").write_text(file)
    server = start(*flags)
    assert server.process.wait(timeout=280) in (1, 2)
    said = server.output()
    assert "Traceback" not in said
    assert "itself failed" not in said
    assert word in said


async def test_small_answers_are_not_held_back_for_an_acknowledgement() -> None:
    """Without TCP_NODELAY every answer takes 40 ms more."""
    seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    sock = main.listen("127.0.0.1", 0, 0)
    async with await asyncio.start_server(connected, sock=sock):
        with socket.create_connection(sock.getsockname()[:2]):
            assert await asyncio.wait_for(seen, 240) == 1


def test_flags_come_before_variables_and_variables_before_the_file(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        "[server]\nport = 1\nvirtual_nodes = 1\nlog_level = 'DEBUG'\n[client]\nserver = 'x'\n"
    )
    environ = {"OARLOCK_HOME": str(home), "OARLOCK_PORT": "2", "OARLOCK_VIRTUAL_NODES": "2"}
    told = main.read_settings(environ, {"port": 3, "virtual_gpus": None})
    assert (told.port, told.virtual_nodes, told.virtual_gpus, told.log_level) == (3, 2, 0, "DEBUG")


def test_how_to_schedule_is_said_in_a_table_of_its_own(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        "[scheduler]\npolicy = 'fair'\nround_s = 10\nbackfill = false\n[scheduler.las]\npromote = 2\n"
    )
    told = main.read_settings({"OARLOCK_HOME": str(home), "OARLOCK_MIN_RUNTIME_S": "5"}, {"policy": "las"})
    assert told.rules == plans.Rules(
        policy="las", round_s=10.0, min_runtime_s=5.0, backfill=False, policies={"las": {"promote": 2.0}}
    )
    assert main.read_settings({"OARLOCK_HOME": str(home), "OARLOCK_POLICY": "fifo"}).rules.policy == "fifo"


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(errors.Unavailable, match="file"):
        main.serve(main.Settings(home=place / "home"))


def test_a_server_that_cannot_announce_itself_ends_and_says_why(tmp_path: Path) -> None:
    """Else it would run on, and `oarlock up` would wait for its file in vain."""
    (tmp_path / "server.port").mkdir()
    program = "import sys; from oarlock import main; sys.exit(main.main([]))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OARLOCK_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == errors.Unavailable.exit_code
    assert "server.json cannot be used" in done.stderr
    assert "not_begun" in (tmp_path / "server.log").read_text()


@pytest.mark.long
def test_an_armed_failpoint_kills_the_server_there(start: Callable[..., Server]) -> None:
    server = start(env={"OARLOCK_FAILPOINT": "store.before_commit:1"})
    assert server.process.wait(timeout=280) == -9


def test_a_server_without_its_control_loops_ends_and_says_why(tmp_path: Path) -> None:
    program = """
import sys
from oarlock import main
from oarlock.controllers import inventory

def broken(self):
    raise RuntimeError("a defect of ours")

inventory.Inventory.wake_at = broken
sys.exit(main.main([]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OARLOCK_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == errors.Unavailable.exit_code
    assert "a defect of ours" in done.stderr
    assert "a defect of ours" in (tmp_path / "server.log").read_text()
    assert not (tmp_path / "server.json").exists()
