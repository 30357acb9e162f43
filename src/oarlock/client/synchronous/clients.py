# Made by `make sdk` from `asynchronous/clients.py`: change that file, not this one.
"""The SDK: `oarlock.AsyncClient` and `oarlock.Client`, with the verbs of the command line.

    async with oarlock.AsyncClient() as client:     with oarlock.Client() as client:
        job = await client.run("python train.py")       job = client.run("python train.py")
        async for line in client.logs(job.id):          for line in client.logs(job.id):
            print(line.text)                                print(line.text)

Every verb builds a request (`oarlock.client.requests`), and a sender carries it out. The server's errors are raised as
the same classes of `oarlock.spec.errors`. `AsyncClient` is the source; `make sdk` makes `Client` from it.
"""

from __future__ import annotations

from oarlock.client.synchronous import clusterverbs, dataverbs, jobverbs, serververbs

__all__ = ["Client"]


class Client(jobverbs.JobVerbs, dataverbs.DataVerbs, clusterverbs.ClusterVerbs, serververbs.ServerVerbs):
    """A client of one server; close it, or use it in `with` (`async with`).

    `server` and `token` default to OARLOCK_SERVER, OARLOCK_TOKEN or config.toml, then to the local server of
    OARLOCK_HOME. Nothing is sent before the first verb. Every verb may raise `ServerNotFound` (no server answers),
    `Unauthenticated`, `Forbidden` and `Unavailable`; a verb's own docstring names further errors. Threads may share a
    `Client`; an `AsyncClient` belongs to one event loop.
    """

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
