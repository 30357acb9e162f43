"""`oarlock secrets`: values for jobs. A value comes from a prompt or stdin, never from an argument; or it stays in a
Kubernetes Secret, to which the secret refers.
"""

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
    from oarlock.spec import bodies


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

    rows = [[one.name, one.owner or _of_server(one), _shared(one.everyone, one.users)] for one in found]
    tables.show(columns.SECRETS, rows)


@command.verb("set", short_help="Create or replace a secret")
@click.argument("name")
@command.option("--of-server", is_flag=True, help="Use the server's secrets, as an administrator.")
@command.option("--everyone", is_flag=True, help="Share the server's secret with every user.")
@command.option(
    "--for", "users", multiple=True, metavar="USER", help="Share the server's secret with this user. Can be repeated."
)
@command.option("--keep-value", is_flag=True, help="Change only the users, and keep the value.")
@command.option(
    "--from-kubernetes",
    "kubernetes",
    metavar="SECRET/KEY",
    help="Make a secret of the server that refers to a key of a Kubernetes Secret.",
)
@command.json_option
@command.connected
def set_secret(
    client: clients.Client,
    name: str,
    of_server: bool,
    everyone: bool,
    users: tuple[str, ...],
    keep_value: bool,
    kubernetes: str | None,
    as_json: bool,
) -> None:
    """Create or replace the secret NAME. The value comes from stdin or a prompt.

    With --from-kubernetes the server stores no value. The secret belongs to the server, and refers to a key of a
    Kubernetes Secret in the namespace of the pods. Only administrators may make one.
    """
    validation.check_name(name)  # before the prompt for a value
    if kubernetes is not None and keep_value:
        raise errors.InvalidInput(
            "--keep-value and --from-kubernetes exclude each other.", hint="Leave one of them out."
        )
    if kubernetes is not None:
        _check_reference(kubernetes)
    value = None if keep_value or kubernetes is not None else _value()
    server = of_server or kubernetes is not None
    made = client.set_secret(name, value, server=server, everyone=everyone, users=users, kubernetes=kubernetes)
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


def _check_reference(text: str) -> None:
    from oarlock.spec.access import kubernetessecrets

    try:
        kubernetessecrets.parse(text)
    except errors.InvalidInput as error:
        raise errors.InvalidInput(error.message, hint=error.hint, path="--from-kubernetes") from error


def _value() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Value", hide_input=True, err=True))
    value = sys.stdin.read().rstrip("\n")
    if not value:
        raise errors.InvalidInput("stdin has no value", hint="Send one: echo VALUE | oarlock secrets set NAME")
    return value


def _of_server(one: bodies.SecretInfo) -> str:
    return f"the server: {one.kubernetes} of Kubernetes" if one.kubernetes is not None else "the server"


def _shared(everyone: bool, users: tuple[str, ...]) -> str:
    return "everyone" if everyone else ", ".join(users)


for _verb in (list_secrets, set_secret, remove):
    secrets.add_command(_verb)
