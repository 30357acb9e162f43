"""Oarlock runs deep-learning work on a laptop and on Kubernetes: one job file, one scheduler, one record.

This is the public root: the version, and the SDK's `Client` and `AsyncClient`. They are looked up at first use, because
everything else pays for what this file imports: `oarlock --help`, and `import oarlock.train` inside a user's training
process.
"""

TYPE_CHECKING = False  # not from `typing`, whose import alone takes half of what this file may take
if TYPE_CHECKING:
    from oarlock.client.asyncclient import AsyncClient
    from oarlock.client.client import Client

__all__ = ["AsyncClient", "Client", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "Client":
        from oarlock.client.client import Client

        return Client
    if name == "AsyncClient":
        from oarlock.client.asyncclient import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
