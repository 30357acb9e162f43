"""Parameter servers for the tests: threads of this process, so that no test waits for an import of torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from oarlock.train.servers import addresses
from oarlock.train.servers.process import server

TOKEN = "the token of the attempt"


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
    """Return what Oarlock tells a worker of them."""
    return {addresses.VARIABLE: ",".join(servers.servers), addresses.TOKEN: servers.token}
