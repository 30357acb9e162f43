"""`oarlock secrets`: values that jobs name. A value comes from a prompt or stdin, never from an argument."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import errors, validation

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients


@command.group(
    "secrets",
    short_help="Secrets that jobs may name",
)
def secrets() -> None:
    """Secrets that jobs may name: your own, and those of the server that are shared with you."""


@command.verb("list", short_help="The secrets that your jobs may name")
@command.json_option
@command.connected
def list_secrets(client: clients.Client, as_json: bool) -> None:
    """List the secrets that your jobs may name. Values are not shown."""
    found = client.secrets()
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli.output import tables

    columns = [tables.Column("SECRET", weight=1), tables.Column("OWNER"), tables.Column("SHARED WITH", weight=1)]
    rows = [[one.name, one.owner or "the server", _shared(one.everyone, one.users)] for one in found]
    tables.show(columns, rows)


@command.verb("set", short_help="Make or replace a secret")
@click.argument("name")
@command.option("--of-server", is_flag=True, help="The server's own; for administrators.")
@command.option("--everyone", is_flag=True, help="Share the server's with every user.")
@command.option("--for", "users", multiple=True, metavar="USER", help="Share the server's with this user.")
@command.option("--keep-value", is_flag=True, help="Change only with whom it is shared.")
@command.json_option
@command.connected
def set_secret(
    client: clients.Client,
    name: str,
    of_server: bool,
    everyone: bool,
    users: tuple[str, ...],
    keep_value: bool,
    as_json: bool,
) -> None:
    """Make or replace the secret NAME. The value is read from stdin, or asked for."""
    validation.check_name(name)  # before a value is asked for
    made = client.set_secret(name, None if keep_value else _value(), server=of_server, everyone=everyone, users=users)
    if as_json:
        terminal.json_out(made)
    else:
        terminal.say(f"Jobs may name it: oarlock run --secret {made.name} -- COMMAND")


@command.verb("rm", short_help="Remove a secret")
@click.argument("name")
@command.option("--of-server", is_flag=True, help="The server's own; for administrators.")
@command.json_option
@command.connected
def remove(client: clients.Client, name: str, of_server: bool, as_json: bool) -> None:
    """Remove the secret NAME."""
    client.remove_secret(name, server=of_server)
    terminal.say(f"Removed {name}.")
    if as_json:
        terminal.json_out({"name": name})


def _value() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Value", hide_input=True, err=True))
    value = sys.stdin.read().rstrip("\n")
    if not value:
        raise errors.InvalidInput("no value came on stdin", hint="echo VALUE | oarlock secrets set NAME")
    return value


def _shared(everyone: bool, users: tuple[str, ...]) -> str:
    return "everyone" if everyone else ", ".join(users)


for _verb in (list_secrets, set_secret, remove):
    secrets.add_command(_verb)
