"""No process of a gang begins before all of its tasks stand at the barrier: one of them is kept from coming."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator

import pytest
from tests.promises import crews
from tests.promises import house as houses

LOOK_S = 1.5
"""How long nothing may happen. A process that is let through begins within a fraction of it."""


class Source(http.server.ThreadingHTTPServer):
    """A file. The second request for it is answered once the gate is open."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.gate = threading.Event()
        self.first = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/letter"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Source

    def do_HEAD(self) -> None:
        if not self.server.first.acquire(blocking=False):
            self.server.gate.wait(houses.START_S)
        self._head()

    def do_GET(self) -> None:
        self._head()
        self.wfile.write(b"dear reader")

    def _head(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "11")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def source() -> Iterator[Source]:
    with Source() as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield one
        one.gate.set()
        one.shutdown()


@pytest.mark.long
def test_no_process_begins_before_all_have_come(house: houses.House, source: Source) -> None:
    wish = crews.Wish(
        key="gang",
        kind="reads",
        argument="data/letter",
        workers=2,
        fields={"data": [{"source": source.url, "mount": "data/letter"}]},
    )
    crew = crews.Crew(house, [wish])
    house.start()
    house.until_ready()
    crew.start()
    crew.join(houses.START_S)
    with house.client() as client:
        job = crew.answered["gang"]

        def came() -> bool:
            return any(record.kind == "task_registered" for record in client.events(job))

        houses.until(came, houses.START_S, "no task came to the barrier")
        time.sleep(LOOK_S)
        attempt = client.job(job).attempts[-1]
    assert not house.record.exists(), f"it began alone: {house.record.read_text()}"
    assert attempt.barrier_at is None
    source.gate.set()
    crews.judge(crew)
