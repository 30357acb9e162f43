"""`oarlock sessions`: the browsers that are logged in as the user, and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients

SHOWN = 12
"""The digits of a digest that are shown, and enough to name it."""


@command.group("sessions", short_help="List and end your sessions in browsers")
def sessions() -> None:
    """List and end your sessions: the browsers that are logged in as you."""


@command.verb("list", short_help="List your sessions")
@command.json_option
@command.connected
def list_sessions(client: clients.Client, as_json: bool) -> None:
    """List your sessions in browsers by their SHA-256, with the times of their begin, last use and end."""
    found = client.sessions()
    if as_json:
        terminal.json_out({"items": found})
        return
    from oarlock.cli.output import tables
    from oarlock.display import durations
    from oarlock.display.tables import columns

    now = client.server().now
    tables.show(
        columns.SESSIONS,
        [
            [
                one.sha256[:SHOWN],
                terminal.clean(one.note) or "unknown",
                durations.ago(now - one.created_at),
                durations.ago(now - one.used_at),
                durations.age(one.expires_at - now),
            ]
            for one in found
        ],
    )


@command.verb("end", short_help="End a session")
@click.argument("sha256")
@command.json_option
@command.connected
def end(client: clients.Client, sha256: str, as_json: bool) -> None:
    """End your session with this beginning of its SHA-256, as `oarlock sessions list` prints it."""
    found = [one.sha256 for one in client.sessions() if one.sha256.startswith(sha256.lower())]
    if len(found) != 1:
        many = "several of your sessions begin" if found else "no session of yours begins"
        raise errors.NotFound(f"{many} with {sha256[:64]!r}", hint="See them: oarlock sessions list --json")
    client.end_session(found[0])
    terminal.say("The session has ended.")
    if as_json:
        terminal.json_out({"sha256": found[0]})


for _verb in (list_sessions, end):
    sessions.add_command(_verb)
