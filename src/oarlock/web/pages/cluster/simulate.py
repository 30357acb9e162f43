"""Simulations: a form for a request of the API, and the pictures of its outcome.

The API makes an ordinary job of the request. This page draws the file that the job leaves.
"""

from __future__ import annotations

import shlex

from starlette import responses

from oarlock.spec import errors
from oarlock.spec.access import users
from oarlock.spec.simulator import simulations
from oarlock.web import routing
from oarlock.web.access import visits
from oarlock.web.drawing import simulated
from oarlock.web.pages.jobs import jobs as listed
from oarlock.web.updates import topics

FAULTS = {"node_mtbf_s": "Between losses of a node", "job_mtbf_s": "Between failures of a job"}
OPTIONS = {"nodes": "--nodes", "seed": "--seed", "node_mtbf_s": "--node-mtbf", "job_mtbf_s": "--job-mtbf"}
"""The option of the command line for each field of the form."""
FIRST = "mixed-load"
OWN = "recorded jobs of the last week"
YOURS = "your file or text, below"
MOST_BYTES = (8 << 20) + (64 << 10)
"""The most of a form: the most that the API takes of a text, and the other fields."""

MOST_KEPT = 1 << 18
"""The most characters of a refused text that come back in its field."""


async def show(visit: visits.Visit) -> routing.Filled:
    return await _form(visit, {})


async def start(visit: visits.Visit) -> routing.Filled | responses.Response:
    """Submit the simulation as a job. A refused form comes back as it was typed."""
    form = await visit.form()
    typed = {name: values[0] for name, values in form.items() if name not in ("policy", "file") and values}
    if "file" in form:
        typed |= {"workload": YOURS, "text": form["file"][0]}
    policies = tuple(dict.fromkeys(form.get("policy", ())))
    try:
        job = await visit.client.simulate(_asked(typed, policies))
        return routing.to(f"/simulate/{job.id}")
    except (errors.InvalidInput, errors.Conflict, errors.TooLarge, errors.Impossible) as refused:
        return await _form(visit, typed, policies, refused)


async def follow(visit: visits.Visit) -> routing.Filled:
    """Show the progress of a simulation, and its results once it has ended."""
    found = await visit.client.simulation(visit.parameters["job"])
    job = await visit.client.job(found.job)
    facts = {
        "title": "Simulation",
        "job": job,
        "last": found.progress,
        "outcome": found.outcome,
        "pictures": simulated.pictures(found.outcome.curves) if found.outcome is not None else None,
        "may": visit.may(users.Right.USER) and not job.terminal,
        "topics": (topics.of_job(job.id),),
        "refresh": 0 if job.terminal else 2,
    }
    return routing.Filled(template="cluster/simulation.html", facts=facts)


def _asked(typed: dict[str, str], policies: tuple[str, ...]) -> simulations.Request:
    """Return the request of a form. Raises InvalidInput for a seed that is not a number, and for an empty text."""
    chosen, text = typed.get("workload", ""), typed.get("text", "").replace("\r\n", "\n")
    seed = typed.get("seed", "").strip() or "0"
    if not (seed.isascii() and seed.isdigit() and len(seed) < 10):
        raise errors.InvalidInput(f"{seed[:20]!r} is not a seed", path="seed", hint="Write a whole number, from 0.")
    if chosen == YOURS and not text.strip():
        hint = "Choose a file, or paste a scenario or a recorded workload."
        raise errors.InvalidInput("there is no file, and the text is empty", path="text", hint=hint)
    return simulations.Request(
        workload=chosen if chosen not in (OWN, YOURS) else "",
        recorded=simulations.Span() if chosen == OWN else None,
        text=text if chosen == YOURS else "",
        nodes=typed.get("nodes", "").strip(),
        policies=policies,
        seed=int(seed),
        faults={name: typed[name].strip() for name in FAULTS if typed.get(name, "").strip()},
    )


async def _form(
    visit: visits.Visit,
    typed: dict[str, str],
    policies: tuple[str, ...] = ("fifo", "las"),
    error: errors.OarlockError | None = None,
) -> routing.Filled:
    kept = typed.get("text", "")
    choices = await visit.client.workloads()
    page = await visit.client.summaries(name=simulations.NAME, limit=10)
    facts = {
        "typed": {"workload": FIRST, "seed": "0", **typed, "text": kept if len(kept) <= MOST_KEPT else ""},
        "left_out": len(kept) > MOST_KEPT,
        "chosen": policies,
        "policies": choices.policies,
        "workloads": [*choices.workloads, OWN, YOURS],
        "faults": FAULTS,
        "error": error,
        "command": _command({"workload": FIRST, "seed": "0", **typed}, policies),
        "earlier": [listed.row(one, page.now) for one in page.items],
    }
    return routing.Filled(
        template="cluster/simulate.html", facts=facts, status=error.status if error is not None else 200
    )


def _command(typed: dict[str, str], policies: tuple[str, ...]) -> str:
    """Return the command that does the same as the form with these choices."""
    workload = typed.get("workload", "")
    words = {OWN: "--recorded 7d", YOURS: "FILE"}.get(workload, shlex.quote(workload))
    options = [("--policy", one) for one in policies]
    options += [(option, typed.get(name, "").strip()) for name, option in OPTIONS.items()]
    told = [f"{option} {shlex.quote(value)}" for option, value in options if value]
    return " ".join(["oarlock simulate", words, "--on-server", *told])


PAGES: tuple[routing.Page, ...] = (
    routing.Page(
        path="/simulate",
        title="Simulate",
        handler=show,
        capability=simulations.CAPABILITY,
        right=users.Right.USER,
        key="i",
    ),
    routing.Page(
        path="/simulate",
        title="Simulate",
        handler=start,
        method="POST",
        capability=simulations.CAPABILITY,
        right=users.Right.USER,
        form_bytes=MOST_BYTES,
    ),
    routing.Page(path="/simulate/{job}", title="Simulation", handler=follow, live=True),
)
