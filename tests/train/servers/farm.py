"""Parameter servers for the tests: threads of this process, so that no test waits for an import of torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any, TypeVar

from oarlock.train.servers import addresses
from oarlock.train.servers.process import server
from oarlock.train.strategies import choices

TOKEN = "the token of the attempt"


Result = TypeVar("Result")


def aside(work: Callable[..., Result], *args: Any) -> futures.Future[Result]:
    """Start the work in a thread. Unlike those of an executor it holds up no end of the tests where one fails."""
    begun: futures.Future[Result] = futures.Future()

    def run() -> None:
        try:
            begun.set_result(work(*args))
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            begun.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return begun


@contextmanager
def running(count: int = 1) -> Iterator[addresses.Addresses]:
    """Run so many servers."""
    made = [server.Server(("127.0.0.1", 0), TOKEN) for _ in range(count)]
    threads = [threading.Thread(target=one.serve) for one in made]
    for thread in threads:
        thread.start()
    try:
        yield addresses.Addresses(tuple(f"127.0.0.1:{one.port}" for one in made), TOKEN)
    finally:
        for one in made:
            one.close()
        for thread in threads:
            thread.join()


def variables(servers: addresses.Addresses) -> dict[str, str]:
    """Return what Oarlock tells a worker of a job with `strategy: {kind: ps}`."""
    told = {addresses.VARIABLE: ",".join(servers.servers), addresses.TOKEN: servers.token}
    return {**told, choices.VARIABLE: '{"kind": "ps"}'}
