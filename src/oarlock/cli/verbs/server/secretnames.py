"""`oarlock secrets`: values for jobs. A value comes from a prompt or stdin, never from an argument."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import errors
from oarlock.spec.input import validation

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients


@command.group("secrets", short_help="List, set and remove secrets")
def secrets() -> None:
    """List, set and remove secrets: your own, and those of the server that are shared with you."""


@command.verb("list", short_help="List the secrets that your jobs may use")
@command.json_option
@command.connected
def list_secrets(client: clients.Client, as_json: bool) -> None:
    """List the secrets that your jobs may use. Values are not shown."""
    found = client.secrets()
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli.output import tables
    from oarlock.display.tables import columns

    rows = [[one.name, one.owner or "the server", _shared(one.everyone, one.users)] for one in found]
    tables.show(columns.SECRETS, rows)


@command.verb("set", short_help="Create or replace a secret")
@click.argument("name")
@command.option("--of-server", is_flag=True, help="Use the server's secrets, as an administrator.")
@command.option("--everyone", is_flag=True, help="Share the server's secret with every user.")
@command.option(
    "--for", "users", multiple=True, metavar="USER", help="Share the server's secret with this user. Can be repeated."
)
@command.option("--keep-value", is_flag=True, help="Change only the users, and keep the value.")
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
    """Create or replace the secret NAME. The value comes from stdin or a prompt."""
    validation.check_name(name)  # before the prompt for a value
    made = client.set_secret(name, None if keep_value else _value(), server=of_server, everyone=everyone, users=users)
    if as_json:
        terminal.json_out(made)
    else:
        terminal.say(f"Jobs can use it now: oarlock run --secret {made.name} -- COMMAND")


@command.verb("rm", short_help="Remove a secret")
@click.argument("name")
@command.option("--of-server", is_flag=True, help="Use the server's secrets, as an administrator.")
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
        raise errors.InvalidInput("stdin has no value", hint="Send one: echo VALUE | oarlock secrets set NAME")
    return value


def _shared(everyone: bool, users: tuple[str, ...]) -> str:
    return "everyone" if everyone else ", ".join(users)


for _verb in (list_secrets, set_secret, remove):
    secrets.add_command(_verb)
