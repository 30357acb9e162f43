"""`oarlock doctor`: look for what is wrong here, and say how to mend it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.cli import checks


@command.verb("doctor", short_help="Look for what is wrong here, and say how to mend it")
@command.json_option
@command.server_options
def doctor(as_json: bool, server: str | None, token: str | None) -> int:
    """Look for what is wrong here, and say how to mend it. The exit code is 1 where there is a problem."""
    from oarlock.cli import checks
    from oarlock.client import settings, verbs

    try:
        told: settings.Settings | None = settings.from_environment(server=server, token=token)
    except errors.InvalidInput:
        told = None  # the check of the settings says why
    environ = {**os.environ, **verbs.shell_of(os.environ)}  # as a job would have it
    around = checks.Surroundings(home=settings.home_directory(os.environ), told=told, environ=environ)
    found = checks.all_findings(around)
    problems = [finding for finding in found if finding.state is checks.State.PROBLEM]
    if as_json:
        terminal.json_out({"findings": found, "problems": len(problems)})
    else:
        _tell(found)
        terminal.say("Nothing is wrong." if not problems else f"{len(problems)} to mend.")
    return 1 if problems else 0


def _tell(found: Sequence[checks.Finding]) -> None:
    from oarlock.cli import checks

    marks = {
        checks.State.GOOD: ("ok", "green"),
        checks.State.INFO: ("info", "cyan"),
        checks.State.WARNING: ("warn", "yellow"),
        checks.State.PROBLEM: ("FAIL", "red"),
    }
    on = terminal.wants_colour(sys.stdout)
    for finding in found:
        mark, colour = marks[finding.state]
        shown = terminal.coloured(f"{mark:<4}", colour, on=on)
        terminal.out(f"{shown}  {finding.check}: {terminal.clean(finding.message)}")
        if finding.fix:
            terminal.out(f"      {terminal.clean(finding.fix)}")
