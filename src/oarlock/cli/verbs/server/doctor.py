"""`oarlock doctor`: find the faults of this machine's setup, and tell how to repair them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.display import findings


@command.verb("doctor", short_help="Find faults of the setup here, and tell how to repair them")
@command.option(
    "--backend",
    type=click.Choice(["local", "kubernetes"]),
    default="local",
    help="Backend to check. `kubernetes` checks the cluster of KUBECONFIG: rights, nodes, GPUs, images.",
)
@command.json_option
@command.server_options
def doctor(backend: str, as_json: bool, server: str | None, token: str | None) -> int:
    """Find faults of the setup here, and tell how to repair them. The exit code is 1 if there is a problem."""
    from oarlock.cli import checks
    from oarlock.client import settings, verbs
    from oarlock.display import findings

    try:
        told: settings.Settings | None = settings.from_environment(server=server, token=token)
    except errors.InvalidInput:
        told = None  # the check of the settings reports the error
    environ = {**os.environ, **verbs.shell_of(os.environ)}  # as a job would have it
    around = checks.Surroundings(home=settings.home_directory(os.environ), told=told, environ=environ)
    found = checks.all_findings(around, cluster=backend == "kubernetes")
    problems = [finding for finding in found if finding.state is findings.State.PROBLEM]
    if as_json:
        terminal.json_out({"findings": found, "problems": len(problems)})
    else:
        _tell(found)
        count = f"{len(problems)} problem{'' if len(problems) == 1 else 's'} to repair."
        terminal.say(count if problems else "No problems.")
    return 1 if problems else 0


def _tell(found: Sequence[findings.Finding]) -> None:
    from oarlock.display import findings

    on = terminal.wants_colour(sys.stdout)
    for finding in found:
        mark = findings.MARKS[finding.state]
        shown = terminal.coloured(f"{mark.glyph:<4}", mark.colour, on=on)
        terminal.out(f"{shown}  {finding.check}: {terminal.clean(finding.message)}")
        for line in finding.fix.splitlines():
            terminal.out(f"      {terminal.clean(line)}")
