"""`oarlock simulate --on-server`: the simulation as a job of the server, and its figures once it has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oarlock.cli import moments
from oarlock.cli.output import terminal
from oarlock.spec import errors, phases
from oarlock.spec.simulator import simulations

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients

FAULTS = {"node_mtbf": "node_mtbf_s", "node_mttr": "node_mttr_s", "job_mtbf": "job_mtbf_s"}
POLL_S = 0.5
_TAKEN = {"nodes", "seed", *FAULTS}


def request(
    workload: Path | None, recorded: str | None, policies: tuple[str, ...], said: Mapping[str, Any]
) -> simulations.Request:
    """Return the request of the flags. Raises InvalidInput for a flag that the server does not take."""
    for name, value in said.items():
        if name not in _TAKEN and value not in (None, ()):
            raise errors.InvalidInput(
                f"--on-server does not take `{name}`", path="--on-server", hint="Write it into the scenario's file."
            )
    name, text = ("", "") if workload is None else _workload(workload)
    began = moments.read(recorded=recorded)
    return simulations.Request(
        workload=name,
        text=text,
        recorded=simulations.Span(since=began["recorded"]) if began else None,
        nodes=said["nodes"] or "",
        policies=tuple(dict.fromkeys(policies)),
        seed=said["seed"] or 0,
        faults={field: said[name] for name, field in FAULTS.items() if said[name] is not None},
    )


def _workload(path: Path) -> tuple[str, str]:
    """Return the name of a workload of the server, or the text of a file."""
    if not path.suffix and not path.exists():
        return str(path), ""
    try:
        return "", path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        hint = "Name a scenario or a recorded workload."
        raise errors.NotFound(f"{path}: {error.strerror}", hint=hint) from error


def run(client: clients.Client, asked: simulations.Request, *, as_json: bool) -> int:
    """Run the simulation and wait for its end. Ctrl-C leaves it running."""
    job = client.simulate(asked)
    terminal.say(f"The simulation is the job {job.id}.")
    try:
        found = _ended(client, job.id)
    except KeyboardInterrupt:
        terminal.say(f"The simulation goes on. Cancel it: oarlock cancel {job.name}")
        return 130
    if found.outcome is None:
        reason = terminal.clean(found.reason) or "it has left no results"
        terminal.say(f"The simulation is {found.phase}: {reason}. See its log: oarlock logs {job.id}")
        return 1
    if as_json:
        terminal.json_out(found.outcome.reports)
    else:
        from oarlock.cli.output import runtables

        runtables.show(found.outcome.titles, found.outcome.lines)
    return 0


def _ended(client: clients.Client, job: str) -> simulations.Simulation:
    """Print each new line of progress until the simulation has ended."""
    last = ""
    while True:
        found = client.simulation(job)
        if found.progress != last:
            last = found.progress
            terminal.say(terminal.clean(last))
        if found.phase in phases.TERMINAL:
            return found
        time.sleep(POLL_S)
