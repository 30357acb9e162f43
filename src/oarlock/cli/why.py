"""`oarlock why`: where a job is, why, and what would change it, in three lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oarlock.cli import command, terminal

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients


@command.verb("why", short_help="Say in three lines why a job is where it is")
@command.job_argument
@command.json_option
@command.connected
def why(client: clients.Client, job: str, as_json: bool) -> None:
    """Say why JOB is where it is, and what would change that.

    Of a job that waits: what it waits for, with the numbers; who holds that, and the smallest change that would start
    it now; when it should start, and its place among those that wait.
    """
    found = client.why(job)
    if as_json:
        terminal.json_out(found)
        return
    for line in found.lines:
        terminal.out(terminal.clean(line))
