"""Oarlock runs deep-learning work on a laptop and on Kubernetes: one job file, one scheduler, one record.

This is the public root: the version, and the SDK's `Client` and `AsyncClient`. They are looked up at first use, because
every program pays for the imports of this file: `oarlock --help`, and `import oarlock.train` inside a user's training
process.
"""

TYPE_CHECKING = False  # not from `typing`, its import alone takes half of the time that this file may take
if TYPE_CHECKING:
    from oarlock.client.asynchronous.clients import AsyncClient
    from oarlock.client.synchronous.clients import Client

__all__ = ["AsyncClient", "Client", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "Client":
        from oarlock.client.synchronous.clients import Client

        return Client
    if name == "AsyncClient":
        from oarlock.client.asynchronous.clients import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
