"""An Oarlock server as far as an agent can tell: it speaks the protocol over real sockets and remembers each request.

It can go away and come back on another port, answer slowly, refuse, and lose its last acknowledgement.
"""

from __future__ import annotations

import http.server
import json
import threading
import time
import urllib.parse
from collections import defaultdict
from pathlib import Path
from typing import Any


class FakeServer:
    """State that outlives an outage, and the switches a test turns. All of it under one lock."""

    def __init__(self, server_file: Path | None = None) -> None:
        self.server_file = server_file
        self.changed = threading.Condition()
        self.heard: list[tuple[str, str, Any]] = []  # method, path, body (bytes for raw ones: their length)
        self.logs: dict[str, bytearray] = defaultdict(bytearray)
        self.metrics: dict[str, bytearray] = defaultdict(bytearray)
        self.reports: list[dict[str, Any]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.kept: list[list[str]] = []
        self.stacks: list[dict[str, Any]] = []
        self.registered: list[dict[str, Any]] = []
        self.blobs: dict[str, bytes] = {}
        # switches
        self.secrets: dict[str, dict[str, str]] = {}
        self.rendezvous: dict[str, Any] | None = {"round": 1, "files": {}, "processes": [], "restore": []}
        self.inline_rendezvous = True
        self.orders: dict[str, Any] = {"version": "v1", "stop": None, "stacks": None, "round": 1, "release": False}
        self.answer_with: int | None = None  # this status to everything
        self.not_yet = 0  # so many 409 to /register
        self.forget_answers = 0  # so many log batches are stored, and their answers lost
        self.slow_s = 0.0
        self.refuse_logs = False
        self.cut_logs: set[str] = set()  # streams that have lost bytes, which the next report is answered with
        self.blobs_after: str | None = None  # the phase that must have been told before a blob is given
        self.connections = 0
        self._http: http.server.ThreadingHTTPServer | None = None
        self._sockets: set[Any] = set()

    @property
    def url(self) -> str:
        assert self._http is not None
        return f"http://127.0.0.1:{self._http.server_port}"

    def start(self) -> FakeServer:
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_for(self))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        if self.server_file is not None:
            self.server_file.write_text(json.dumps({"url": self.url}))
        return self

    def stop(self) -> None:
        """Go away: no new connections, and the present ones are cut."""
        if self._http is None:
            return
        self._http.shutdown()
        self._http.server_close()
        self._http = None
        with self.changed:
            sockets, self._sockets = self._sockets, set()
            self.changed.notify_all()
        for sock in sockets:
            try:
                sock.shutdown(2)
            except OSError:
                pass

    def order(self, **fields: Any) -> None:
        with self.changed:
            self.orders = {**self.orders, **fields, "version": f"v{len(self.heard)}-{time.monotonic()}"}
            self.changed.notify_all()

    def open_barrier(self, **rendezvous: Any) -> None:
        with self.changed:
            self.rendezvous = {"round": 1, "files": {}, "processes": [], "restore": [], **rendezvous}
            self.changed.notify_all()

    def wait_for(self, condition: Any, timeout_s: float = 240.0) -> None:
        """Block until `condition()` holds; a generous ceiling turns a hang into a failure."""
        until = time.monotonic() + timeout_s
        with self.changed:
            while not condition():
                left = until - time.monotonic()
                assert left > 0, f"waited {timeout_s} s in vain; heard {self.heard[-10:]}"
                self.changed.wait(min(left, 0.1))

    def exits(self) -> list[dict[str, Any]]:
        return [report["exit"] for report in self.reports if report.get("exit")]

    def phases(self) -> list[str]:
        return [report["phase"] for report in self.reports if report.get("phase")]


def handler_for(fake: FakeServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with fake.changed:
                fake.connections += 1
                fake._sockets.add(self.connection)

        def finish(self) -> None:
            try:
                super().finish()
            except OSError:
                pass
            with fake.changed:
                fake._sockets.discard(self.connection)

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                pass

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self.answer("GET")

        def do_POST(self) -> None:
            self.answer("POST")

        def answer(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
            path = url.path.removeprefix("/agent/v1")
            if fake.slow_s:
                time.sleep(fake.slow_s)
            with fake.changed:
                fake.heard.append((method, path, len(body)))
                assert self.headers["Authorization"] == "Bearer token-1"
                assert self.headers["Oarlock-Task"].count("/") == 4
                if fake.answer_with is not None:
                    status, value = fake.answer_with, {}
                else:
                    status, value = self.route(method, path, query, body)
                fake.changed.notify_all()
            if status:
                self.reply(status, value)

        def route(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            noun = path.split("/")[1]
            return getattr(self, f"{method.lower()}_{noun}")(path, query, body)

        def post_register(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            if fake.not_yet > 0:
                fake.not_yet -= 1
                return 409, {"error": "not yet"}
            fake.registered.append(json.loads(body))
            meeting = fake.rendezvous if fake.inline_rendezvous else None
            return 200, {"secrets": fake.secrets, "rendezvous": meeting, "orders": fake.orders}

        def get_secrets(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            return 200, {"secrets": fake.secrets}

        def get_rendezvous(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            number = int(query["round"])
            self.hold(query, lambda: fake.rendezvous is not None and fake.rendezvous["round"] >= number)
            if fake.rendezvous is None or fake.rendezvous["round"] < number:
                return 204, None
            return 200, fake.rendezvous

        def get_orders(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            self.hold(query, lambda: str(fake.orders["version"]) != query["seen"])
            if fake.answer_with is not None:
                return fake.answer_with, {}
            return (204, None) if str(fake.orders["version"]) == query["seen"] else (200, fake.orders)

        def hold(self, query: dict[str, str], condition: Any) -> None:
            until = time.monotonic() + float(query["wait"])
            while not condition() and time.monotonic() < until and fake._http is not None:
                if fake.answer_with is not None:
                    return
                fake.changed.wait(min(0.25, max(0.0, until - time.monotonic())))

        def post_report(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            fake.reports.append(json.loads(body))
            short = {name: len(fake.logs[name]) for name in fake.cut_logs}
            fake.cut_logs = set()
            return 200, {"orders": fake.orders, "logs": short}

        def post_logs(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            if fake.refuse_logs:
                return 413, {"error": "too much"}
            return self.append(fake.logs[path.split("/")[2]], query, body)

        def post_metrics(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            return self.append(fake.metrics[path.split("/")[2]], query, body)

        def append(self, stored: bytearray, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            if int(query["offset"]) != len(stored):
                return 409, {"length": len(stored)}
            stored += body
            if fake.forget_answers > 0:
                fake.forget_answers -= 1
                self.close_connection = True
                return 0, None
            return 200, {"length": len(stored)}

        def post_checkpoints(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            if path.endswith("/kept"):
                fake.kept.append(json.loads(body)["names"])
                return 200, {"heard": True}
            fake.checkpoints.append(json.loads(body))
            return 200, {"visible": True}

        def post_stacks(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            fake.stacks.append(json.loads(body))
            return 200, {}

        def get_blobs(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
            if fake.blobs_after is not None:
                self.hold({"wait": "30"}, lambda: fake.blobs_after in fake.phases())
            blob = fake.blobs.get(path.split("/")[2])
            return (404, {}) if blob is None else (200, blob)

        def reply(self, status: int, value: Any) -> None:
            data = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
            head = f"HTTP/1.1 {status} x\r\n"
            if status != 204:
                head += f"Content-Length: {len(data)}\r\n"
            self.wfile.write((head + "\r\n").encode() + data)

    return Handler
