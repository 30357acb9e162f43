"""`oarlock users`: users and their tokens, for administrators. A token is shown once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from oarlock.cli import command, terminal

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients

RIGHTS = ("admin", "user", "viewer")


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
    from oarlock.cli import tables

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
