"""`oarlock version`: what this is, and what answers."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import oarlock
from oarlock.cli import command, terminal
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients


@command.verb("version", short_help="Versions of the client and the server")
@command.json_option
@command.connected
def version(client: clients.Client, as_json: bool) -> None:
    """Versions of the client and of the server that answers, if one does."""
    try:
        server: str | None = client.server().version
        url: str | None = client.url
    except errors.ServerNotFound:
        server = url = None
    if as_json:
        terminal.json_out(
            {"client": oarlock.__version__, "python": platform.python_version(), "server": server, "url": url}
        )
        return
    terminal.out(f"oarlock {oarlock.__version__} (Python {platform.python_version()})")
    terminal.out(f"server  {server} at {url}" if server else "server  none answers")
