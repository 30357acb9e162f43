"""`oarlock login URL`: remember a server and the token for it, once both have been tried."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from oarlock.cli import command, terminal

if TYPE_CHECKING:
    from oarlock.client import settings


@command.verb("login", short_help="Remember a server and its token")
@click.argument("url", required=False)
@command.option("--token", metavar="TOKEN", help="Else it is asked for, or read from stdin.")
@command.option("--ca-file", metavar="FILE", help="PEM of the authority that signed the server's certificate.")
@command.option("--forget", is_flag=True, help="Go back to the local server.")
@command.json_option
def login(url: str | None, token: str | None, ca_file: str | None, forget: bool, as_json: bool) -> None:
    """Use the server at URL from now on. The token is kept in $OARLOCK_HOME/login.json, readable by you alone."""
    from oarlock.client import settings
    from oarlock.client.synchronous import client as clients
    from oarlock.spec import errors

    home = settings.home_directory(os.environ)
    path = home / settings.LOGIN_FILE
    if forget:
        path.unlink(missing_ok=True)
        terminal.say(f"Forgotten. From now on the local server of {home} is meant.")
        if as_json:
            terminal.json_out({"server": None})
        return
    if url is None:
        raise errors.InvalidInput("there is no URL", hint="Say which server: oarlock login https://HOST")
    token = token or _asked()
    told = settings.resolve(os.environ, {"server": url, "token": token, "ca_file": ca_file})
    with clients.Client(told=told) as client:
        server = client.server()
    settings.write_login(path, settings.Login(told.server, token, ca_file))
    terminal.say(f"Logged in to {told.server} as {terminal.clean(server.user)} ({server.right}).")
    _warn(told)
    if as_json:
        terminal.json_out({"server": told.server, "user": server.user, "right": server.right})


def _asked() -> str:
    from oarlock.spec import errors

    if terminal.is_terminal(sys.stdin):
        import getpass

        token = getpass.getpass("Token: ")
    else:
        token = sys.stdin.readline()
    if not token.strip():
        raise errors.Unauthenticated("there is no token", hint="An administrator makes one: oarlock users token NAME")
    return token.strip()


def _warn(told: settings.Settings) -> None:
    from oarlock.client import places

    if told.server is not None and told.server.startswith("http:") and not places.find(told).loopback:
        terminal.say(
            "Take care: over http:// anybody on the way can read the token. Use https:// if the server has it."
        )
    for name in ("OARLOCK_SERVER", "OARLOCK_TOKEN"):
        if os.environ.get(name):
            terminal.say(f"Take care: {name} is set, and goes before this.")
