"""`oarlock login`: the server and token to use from now on. `oarlock users`: users and their tokens."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.client import settings
    from oarlock.client.synchronous import clients

RIGHTS = ("admin", "user", "viewer")


@command.verb("login", short_help="Remember a server and its token")
@click.argument("url", required=False)
@command.option("--token", metavar="TOKEN", show_default="from a prompt or stdin", help="Token for the server.")
@command.option("--ca-file", metavar="FILE", help="PEM file of the authority that signed the server's certificate.")
@command.option("--forget", is_flag=True, help="Use the local server again.")
@command.json_option
def login(url: str | None, token: str | None, ca_file: str | None, forget: bool, as_json: bool) -> None:
    """Use the server at URL from now on. The token is stored in $OARLOCK_HOME/login.json, readable by you alone."""
    from oarlock.client import settings
    from oarlock.client.synchronous import clients

    ca_file = str(Path(ca_file).absolute()) if ca_file else None  # later commands run in other directories
    home = settings.home_directory(os.environ)
    path = home / settings.LOGIN_FILE
    if forget:
        path.unlink(missing_ok=True)
        terminal.say(f"Logged out. Commands now use the local server of {home}.")
        if as_json:
            terminal.json_out({"server": None})
        return
    if url is None:
        raise errors.InvalidInput("there is no URL of a server", hint="Name it: oarlock login https://HOST")
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
        raise errors.Unauthenticated(
            "there is no token", hint="An administrator can make one: oarlock users token NAME"
        )
    return token.strip()


def _warn(told: settings.Settings) -> None:
    from oarlock.client import places

    if told.server is not None and told.server.startswith("http:") and not places.find(told).loopback:
        terminal.say(
            "Take care: http:// shows the token to everyone on the network. Use https:// if the server has it."
        )
    for name in ("OARLOCK_SERVER", "OARLOCK_TOKEN"):
        if os.environ.get(name):
            terminal.say(f"Take care: {name} is set, and overrides this login.")


@command.group("users", short_help="Manage users and tokens, as an administrator")
def users() -> None:
    """Manage users and their tokens, as an administrator."""


@command.verb("list", short_help="List the users of this server")
@command.json_option
@command.connected
def list_users(client: clients.Client, as_json: bool) -> None:
    """List the users and their rights."""
    found = client.users()
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli.output import tables
    from oarlock.display.tables import columns

    tables.show(columns.USERS, [[one.name, str(one.right)] for one in found])


@command.verb("add", short_help="Add a user")
@click.argument("name")
@command.option(
    "--right",
    type=click.Choice(RIGHTS),
    default="user",
    show_default=True,
    help="Right of the user. An admin may do everything, a viewer only look.",
)
@command.json_option
@command.connected
def add(client: clients.Client, name: str, right: str, as_json: bool) -> None:
    """Add the user NAME, and print the user's first token. A token is shown once."""
    client.add_user(name, right)
    terminal.say(f"Added {name} ({right}). This token is shown once:")
    _print_token(client.add_token(name), as_json)


@command.verb("remove", short_help="Remove a user")
@click.argument("name")
@command.json_option
@command.connected
def remove(client: clients.Client, name: str, as_json: bool) -> None:
    """Remove the user NAME with all tokens, sessions and secrets. Jobs that have ended keep the name.

    This is refused while the user has jobs that have not ended.
    """
    client.remove_user(name)
    terminal.say(f"Removed {terminal.clean(name)}.")
    if as_json:
        terminal.json_out({"user": name})


@command.verb("token", short_help="Make a new token for a user")
@click.argument("name")
@command.option("--note", default="", metavar="TEXT", help="Purpose of the token, stored with it.")
@command.json_option
@command.connected
def token(client: clients.Client, name: str, note: str, as_json: bool) -> None:
    """Make a new token for the user NAME, and print it. A token is shown once."""
    _print_token(client.add_token(name, note), as_json)


@command.verb("tokens", short_help="List the tokens of a user")
@click.argument("name")
@command.json_option
@command.connected
def list_tokens(client: clients.Client, name: str, as_json: bool) -> None:
    """List the tokens of the user NAME by their SHA-256 and note. The tokens themselves are not kept."""
    found = client.tokens(name)
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli.output import tables
    from oarlock.display.tables import columns

    tables.show(columns.TOKENS, [[one.sha256, terminal.clean(one.note)] for one in found])


@command.verb("revoke", short_help="Revoke a token")
@click.argument("name")
@click.argument("sha256")
@command.json_option
@command.connected
def revoke(client: clients.Client, name: str, sha256: str, as_json: bool) -> None:
    """Revoke the token of NAME with this SHA-256, which was printed when the token was made."""
    client.remove_token(name, sha256)
    terminal.say("The token is revoked.")
    if as_json:
        terminal.json_out({"user": name, "sha256": sha256})


def _print_token(made: Any, as_json: bool) -> None:
    if as_json:
        terminal.json_out(made)
        return
    terminal.out(made.token)
    if made.sha256:
        terminal.say(f"To revoke it: oarlock users revoke {made.user} {made.sha256}")


for _verb in (list_users, add, remove, token, list_tokens, revoke):
    users.add_command(_verb)
