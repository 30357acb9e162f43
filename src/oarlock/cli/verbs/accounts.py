"""`oarlock login`: the server and token to use from now on. `oarlock users`: users and their tokens."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.client import settings
    from oarlock.client.synchronous import client as clients

RIGHTS = ("admin", "user", "viewer")


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


@command.group(
    "users",
    short_help="Users and tokens, for administrators",
)
def users() -> None:
    """Users and their tokens, for administrators."""


@command.verb("list", short_help="Who may use this server")
@command.json_option
@command.connected
def list_users(client: clients.Client, as_json: bool) -> None:
    """List the users and their rights."""
    found = client.users()
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli.output import tables

    tables.show(
        [tables.Column("USER", weight=1), tables.Column("RIGHT")], [[one.name, str(one.right)] for one in found]
    )


@command.verb("add", short_help="A new user")
@click.argument("name")
@command.option("--right", type=click.Choice(RIGHTS), default="user", help="admin: everything; viewer: look only.")
@command.json_option
@command.connected
def add(client: clients.Client, name: str, right: str, as_json: bool) -> None:
    """Add the user NAME, and print a first token."""
    client.add_user(name, right)
    terminal.say(f"Added {name} ({right}). This token is shown once:")
    _print_token(client.add_token(name), as_json)


@command.verb("token", short_help="A new token of a user")
@click.argument("name")
@command.option("--note", default="", metavar="TEXT", help="What it is for.")
@command.json_option
@command.connected
def token(client: clients.Client, name: str, note: str, as_json: bool) -> None:
    """Make a new token for the user NAME, and print it: it is shown once."""
    _print_token(client.add_token(name, note), as_json)


@command.verb("revoke", short_help="A token holds no longer")
@click.argument("name")
@click.argument("sha256")
@command.json_option
@command.connected
def revoke(client: clients.Client, name: str, sha256: str, as_json: bool) -> None:
    """Take away the token of NAME whose SHA-256 was told when it was made."""
    client.remove_token(name, sha256)
    terminal.say("It holds no longer.")
    if as_json:
        terminal.json_out({"user": name, "sha256": sha256})


def _print_token(made: Any, as_json: bool) -> None:
    if as_json:
        terminal.json_out(made)
        return
    terminal.out(made.token)
    if made.sha256:
        terminal.say(f"To take it away: oarlock users revoke {made.user} {made.sha256}")


for _verb in (list_users, add, token, revoke):
    users.add_command(_verb)
