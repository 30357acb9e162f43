"""Simulations: a workload on a simulated cluster, as an ordinary job that the scheduler starts when a core is free.

The server itself computes nothing. Each user's simulations have one name, so that a user has one at a time. The job
leaves one file, and this page draws it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette import responses

from oarlock.client import packing, requests, settings
from oarlock.spec import errors, jobfile, jobs, phases, recordings, roles
from oarlock.spec.access import users
from oarlock.spec.input import validation
from oarlock.web import routing, scratch, visits
from oarlock.web.drawing import simulated
from oarlock.web.pages import jobs as listed

if TYPE_CHECKING:
    from oarlock.data.snapshots import snapshots

NAME = "simulation"
FILE = "simulation.json"
SCENARIO = "scenario.yaml"
RECORDED = "workload.csv"
TIMEOUT = "1h"
WEEK_S = 7 * 86_400.0
MOST_RECORDED = 1000
MOST_BYTES = 32 << 20
POLICIES = ("fair", "fifo", "gandiva", "gittins", "goodput", "las", "optimus", "priority")
"""The policies that the form offers. `tests/web/test_simulate.py` compares them with those of the scheduler."""
FAULTS = {"node_mtbf_s": "Between losses of a node", "job_mtbf_s": "Between failures of a job"}
BUNDLED = {path.stem: path.read_text() for path in sorted((Path(__file__).parents[1] / "workloads").glob("*.yaml"))}
OWN = "recorded jobs of the last week"
PASTED = "the text below"
_COMMAND = (sys.executable, "-I", "-m", "oarlock.simulator.recorder", SCENARIO)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The file that the job leaves. `reports` are those of `oarlock simulate --json`."""

    reports: tuple[dict[str, Any], ...]
    titles: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    curves: tuple[recordings.Curves, ...]


async def show(visit: visits.Visit) -> routing.Filled:
    return await _form(visit, {})


async def start(visit: visits.Visit) -> routing.Filled | responses.Response:
    """Submit the simulation as a job. A refused form comes back as it was typed."""
    form = await visit.form()
    typed = {name: values[0] for name, values in form.items() if name != "policy" and values}
    policies = tuple(dict.fromkeys(form.get("policy", ())))
    try:
        _offered(visit)
        if unknown := [one for one in policies if one not in POLICIES]:
            raise errors.InvalidInput(
                f"there is no policy {unknown[0][:40]!r}", hint=f"There are {', '.join(POLICIES)}."
            )
        files = await _files(visit, typed)
        job = await _submit(visit, files, policies)
        return routing.to(f"/simulate/{job.id}")
    except errors.NameTaken:
        hint = "Wait for its end, or cancel it: oarlock cancel simulation"
        error: errors.OarlockError = errors.Conflict("A simulation of yours is under way.", hint=hint)
    except (errors.InvalidInput, errors.Conflict, errors.TooLarge, errors.Impossible) as refused:
        error = refused
    return await _form(visit, typed, policies, error)


async def follow(visit: visits.Visit) -> routing.Filled:
    """Show the progress of a simulation, and its results once it has ended."""
    job = await visit.client.job(visit.parameters["job"])
    if job.name != NAME:
        raise errors.NotFound("This job is not a simulation.", hint=f"See it as a job: oarlock show {job.name}")
    outcome = await _outcome(visit, job) if job.phase is phases.Phase.COMPLETED else None
    facts = {
        "title": "Simulation",
        "job": job,
        "last": await _last_line(visit, job),
        "outcome": outcome,
        "pictures": simulated.pictures(outcome.curves) if outcome is not None else None,
        "may": visit.may(users.Right.USER) and not job.terminal,
        "refresh": 0 if job.terminal else 2,
    }
    return routing.Filled(template="cluster/simulation.html", facts=facts)


def _offered(visit: visits.Visit) -> None:
    if visit.server.backend != "local":
        raise errors.Unsupported(
            "Simulations run on servers with the local backend.", hint="On your machine: oarlock simulate FILE"
        )


async def _form(
    visit: visits.Visit,
    typed: dict[str, str],
    policies: tuple[str, ...] = ("fifo", "las"),
    error: errors.OarlockError | None = None,
) -> routing.Filled:
    page = await visit.client.summaries(name=NAME, limit=10)
    facts = {
        "typed": {"workload": "mixed-load", "seed": "0", **typed},
        "chosen": policies,
        "policies": POLICIES,
        "workloads": [*BUNDLED, OWN, PASTED],
        "faults": FAULTS,
        "error": error,
        "earlier": [listed.row(one, page.now) for one in page.items],
        "local": visit.server.backend == "local",
    }
    return routing.Filled(
        template="cluster/simulate.html", facts=facts, status=error.status if error is not None else 200
    )


async def _files(visit: visits.Visit, typed: dict[str, str]) -> dict[str, bytes]:
    """Return the files of the job: the changed scenario, and a recorded workload. Raises InvalidInput."""
    chosen, text = typed.get("workload", ""), typed.get("text", "").replace("\r\n", "\n")
    files: dict[str, bytes] = {}
    if chosen == PASTED and _recorded(text):
        files[RECORDED] = text.encode("utf-8", "replace")
        raw: dict[str, Any] = {"recorded": {"file": RECORDED}}
    elif chosen == PASTED:
        raw = validation.fields(text, source="the text", hint="A scenario has `jobs` or `recorded`.")
        if isinstance(raw.get("recorded"), dict):
            raise errors.InvalidInput("a scenario here cannot name files", path="recorded", hint="Paste the CSV alone.")
    elif chosen == OWN:
        raw = await _own(visit)
    elif chosen in BUNDLED:
        raw = validation.fields(BUNDLED[chosen])
    else:
        raise errors.InvalidInput("There is no such workload.", path="workload", hint="Choose one of the list.")
    if nodes := typed.get("nodes", "").strip():
        raw["nodes"] = nodes
    seed = typed.get("seed", "").strip() or "0"
    if not (seed.isascii() and seed.isdigit() and len(seed) < 10):
        raise errors.InvalidInput(f"{seed[:20]!r} is not a seed", path="seed", hint="Write a whole number, from 0.")
    raw["seed"] = int(seed)
    faults = {name: typed[name].strip() for name in FAULTS if typed.get(name, "").strip()}
    if faults:
        known = raw.get("faults") or {}
        if not isinstance(known, dict):
            raise errors.InvalidInput(
                "the faults are not a mapping",
                path="faults",
                hint=f"Write them as {', '.join(FAULTS)}, or leave them out.",
            )
        raw["faults"] = {**known, **faults}
    return {SCENARIO: msgspec.yaml.encode({"name": "simulation", **raw}), **files}


def _recorded(text: str) -> bool:
    """Return whether the text is a table: its first line has commas, and no colon or bracket."""
    first = text.lstrip().partition("\n")[0]
    return "," in first and not set(":{[#") & set(first)


async def _own(visit: visits.Visit) -> dict[str, Any]:
    """Return the jobs of the last week that the user may see and that have run, as a workload."""
    now = (await visit.client.summaries(limit=1)).now
    found = await visit.client.jobs(since=now - WEEK_S, limit=MOST_RECORDED, ascending=True)
    ran = [job for job in found if job.processed_s > 0]
    if not ran:
        raise errors.InvalidInput("No job of the last week has run.", path="workload", hint="Choose another workload.")
    first = min(job.created_at for job in ran)
    groups = [_group(job, number, first) for number, job in enumerate(ran)]
    return {"nodes": "4x4", "jobs": groups}


def _group(job: jobs.Job, number: int, first: float) -> dict[str, Any]:
    devices = round(sum(role.count * role.gpus for role in job.spec.roles.values()))
    return {
        "name": f"job-{number}",
        "arrivals": {"start": round(job.created_at - first, 3)},
        "lasts": round(job.processed_s, 3),
        "gpus": max(1, devices),
        "owner": job.owner,
    }


async def _submit(visit: visits.Visit, files: dict[str, bytes], policies: tuple[str, ...]) -> jobs.Job:
    spec = jobfile.JobSpec(
        command=(*_COMMAND, *policies),
        name=NAME,
        framework=roles.Framework.PLAIN,
        priority=0,
        timeout=TIMEOUT,
        max_restarts=0,
        roles={roles.RoleName.WORKER: jobfile.Role(cpus=1)},
    )
    with visit.alone("simulation"):
        async with scratch.folder("oarlock-simulation-") as place:
            packed = await asyncio.to_thread(_packed, place, files)
            await visit.client.upload(packed)
            return await visit.client.submit_packed(spec, packed.digest, shell={})


def _packed(place: Path, files: dict[str, bytes]) -> snapshots.Snapshot:
    code = place / "code"
    code.mkdir()
    for name, content in files.items():
        (code / name).write_bytes(content)
    return packing.pack(code, settings.Settings(home=place / "home"))


async def _outcome(visit: visits.Visit, job: jobs.Job) -> Outcome | None:
    """Return the file that the job has left, None where it is missing or not valid."""
    listing = await visit.client.files(job.id)
    found = next((one for one in listing.items if one.path.rpartition("/")[2] == FILE), None)
    if found is None or found.bytes > MOST_BYTES:
        return None
    async with scratch.folder("oarlock-simulation-") as place:
        await visit.client.download(job.id, found.path, str(place))
        try:
            return await asyncio.to_thread(
                lambda: msgspec.json.decode(next(place.rglob(FILE)).read_bytes(), type=Outcome)
            )
        except msgspec.MsgspecError:
            return None


async def _last_line(visit: visits.Visit, job: jobs.Job) -> str:
    if job.attempt is None:
        return ""
    lines = [one async for one in visit.client.log_items(job.id, requests.LogChoice(tail=1)) if hasattr(one, "text")]
    return lines[-1].text if lines else ""


PAGES: tuple[routing.Page, ...] = (
    routing.Page(path="/simulate", title="Simulate", handler=show, right=users.Right.USER, key="i"),
    routing.Page(path="/simulate", title="Simulate", handler=start, method="POST", right=users.Right.USER),
    routing.Page(path="/simulate/{job}", title="Simulation", handler=follow),
)
