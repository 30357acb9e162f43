"""The private authorities of object stores, beside those of the system.

The libraries that reach a store or a link (botocore, aiohttp, httpx, requests) read their authorities from a file that
a variable names, and from that file alone. So one file has both, and the variables name it.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path

FILE = "stores.pem"
"""The file in a task's directory with the authorities of stores."""
VARIABLES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


def trust(pem: str, bundle: Path, environ: MutableMapping[str, str]) -> list[str]:
    """Write the file `bundle`, and name it in the environment. Return the variables that were not set before: the
    others stay as they are.
    """
    _write(pem, bundle)
    added = [name for name in VARIABLES if name not in environ]
    environ.update(dict.fromkeys(added, str(bundle)))
    return added


@contextlib.contextmanager
def bundled(pem: str) -> Iterator[Path | None]:
    """Yield a file with these authorities and the system's; None for an empty text."""
    if not pem:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="oarlock-authorities-") as folder:
        bundle = Path(folder) / "authorities.pem"
        _write(pem, bundle)
        yield bundle


@contextlib.contextmanager
def trusted(pem: str) -> Iterator[None]:
    """Let this process trust these authorities, too; an empty text changes nothing."""
    if not pem:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="oarlock-authorities-") as folder:
        added = trust(pem, Path(folder) / "authorities.pem", os.environ)
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)


def _write(pem: str, bundle: Path) -> None:
    content = "\n".join([*_system(), pem.strip()]) + "\n"
    made = os.open(bundle, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(made, "w", encoding="utf-8") as file:
        file.write(content)


def _system() -> list[str]:
    """Return the authorities that the libraries would trust otherwise."""
    try:
        import certifi
    except ImportError:
        known = ssl.get_default_verify_paths().cafile
        return [Path(known).read_text(encoding="utf-8").strip()] if known else []
    return [certifi.contents().strip()]
