"""Simulations: a workload on a simulated cluster, as an ordinary job that the scheduler starts when a core is free.

The server itself simulates nothing. It packs the workload as the job's code, and submits the job as the caller would.
Where tasks run in images, the job has the server's own one, which has the program.
Before that a process of a moment reads the scenario, so that one that is not valid is refused, and fails no job.
Each user's simulations have one name, so that a user has one at a time. Its files, its log and its end are those of
any job: cancel it as a job.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from oarlock.api import routes
from oarlock.api.jobs import jobs, recordedjobs
from oarlock.api.services import provided
from oarlock.data import storage
from oarlock.data.snapshots import snapshots
from oarlock.scheduler.policies import registry
from oarlock.spec import errors, jobfile, phases, roles
from oarlock.spec import jobs as nouns
from oarlock.spec.access import users
from oarlock.spec.input import validation
from oarlock.spec.protocol import serverimage
from oarlock.spec.simulator import simulations

BUNDLED = {path.stem: path.read_text() for path in sorted((Path(__file__).parents[1] / "workloads").glob("*.yaml"))}
SCENARIO, TABLE = "scenario.yaml", "workload.csv"
TIMEOUT = "1h"
MOST_TEXT_BYTES = 8 << 20
MOST_SCENARIO_CHARACTERS = 1 << 18
"""The longest scenario that the server reads. A table is read by the job alone."""

MOST_OUTCOME_BYTES = 32 << 20
CHUNK_BYTES = 1 << 18
CHECK_S = 20.0
MOST_SAID = 2000
_RECORDER = ("-I", "-m", "oarlock.simulator.recorder")


class Refusal(msgspec.Struct):
    """The line of the check."""

    message: str
    path: str
    hint: str

    def error(self) -> errors.InvalidInput:
        return errors.InvalidInput(
            self.message[:MOST_SAID], path=self.path[:MOST_SAID] or "text", hint=self.hint[:MOST_SAID]
        )


async def choices(call: routes.Call) -> simulations.Choices:
    offered = simulations.CAPABILITY in call.services.about.capabilities
    return simulations.Choices(workloads=tuple(BUNDLED), policies=tuple(sorted(registry.POLICIES)), offered=offered)


async def start(call: routes.Call) -> nouns.Job:
    """Submit the simulation. Raises Conflict while another one of the user is under way."""
    services, access, asked = call.services, call.access, call.body(simulations.Request)
    if simulations.CAPABILITY not in services.about.capabilities:
        raise errors.Unsupported("This server runs no simulations.", hint="On your machine: oarlock simulate FILE")
    for name in asked.policies:
        if name not in registry.POLICIES:
            raise errors.InvalidInput(
                f"there is no policy {name[:40]!r}", path="policies", hint=f"There are {', '.join(registry.POLICIES)}."
            )
    own = await recordedjobs.read(services, access, asked.recorded) if asked.recorded is not None else None
    async with services.simulation_turns.of(access.user.name):
        files = await asyncio.to_thread(_files, asked, own)
        policies = tuple(dict.fromkeys(asked.policies))
        digest = await _store(services, files, policies)
        submission = jobfile.Submission(spec=_spec(policies, services.image), snapshot=digest)
        try:
            job, _ = await jobs.admit(services, access, submission, "")
        except errors.NameTaken as error:
            raise errors.Conflict(
                "A simulation of yours is under way.",
                hint=f"Wait for its end, or cancel it: oarlock cancel {simulations.NAME}",
            ) from error
    return access.shown(job)


async def show(call: routes.Call) -> simulations.Simulation:
    job = await call.access.job(call.path["job"])
    if job.name != simulations.NAME:
        raise errors.NotFound("This job is not a simulation.", hint=f"See it as a job: oarlock show {call.path['job']}")
    completed = job.phase is phases.Phase.COMPLETED
    return simulations.Simulation(
        job=job.id,
        phase=job.phase,
        reason=job.reason,
        progress=await _last_line(call.services, job),
        outcome=await _outcome(call.services, job.id) if completed else None,
    )


def _spec(policies: tuple[str, ...], image: str | None) -> jobfile.JobSpec:
    python = serverimage.PYTHON if image is not None else sys.executable
    return jobfile.JobSpec(
        command=(python, *_RECORDER, SCENARIO, *policies),
        image=image,
        name=simulations.NAME,
        framework=roles.Framework.PLAIN,
        priority=0,
        timeout=TIMEOUT,
        max_restarts=0,
        roles={roles.RoleName.WORKER: jobfile.Role(cpus=1)},
    )


def _files(asked: simulations.Request, own: simulations.Workload | None) -> dict[str, bytes]:
    """Return the files of the job: the changed scenario, and a recorded table. Raises InvalidInput."""
    if (bool(asked.workload), own is not None, bool(asked.text)).count(True) != 1:
        raise errors.InvalidInput(
            "a simulation needs one workload",
            path="workload",
            hint="Give one of `workload`, `recorded` and `text`.",
        )
    files: dict[str, bytes] = {}
    if own is not None:
        raw: dict[str, Any] = msgspec.to_builtins(own)
    elif asked.workload:
        if asked.workload not in BUNDLED:
            hint = f"Choose one of {', '.join(BUNDLED)}."
            raise errors.InvalidInput("There is no such workload.", path="workload", hint=hint)
        raw = validation.fields(BUNDLED[asked.workload])
    elif is_table(asked.text):
        files[TABLE] = asked.text.encode("utf-8", "replace")
        raw = {"recorded": {"file": TABLE}}
    else:
        raw = _scenario(asked.text)
    raw["seed"] = asked.seed
    if asked.nodes.strip():
        raw["nodes"] = asked.nodes.strip()
    if asked.faults:
        known = raw.get("faults") or {}
        if not isinstance(known, dict):
            hint = f"Write them as {', '.join(asked.faults)}, or leave them out."
            raise errors.InvalidInput("the faults are not a mapping", path="faults", hint=hint)
        raw["faults"] = {**known, **asked.faults}
    return {SCENARIO: msgspec.yaml.encode({"name": simulations.NAME, **raw}), **files}


def _scenario(text: str) -> dict[str, Any]:
    if len(text) > MOST_SCENARIO_CHARACTERS:
        raise errors.TooLarge(
            f"The scenario has more than {MOST_SCENARIO_CHARACTERS:,} characters.",
            path="text",
            hint="Send a recorded workload as a CSV table, or run it on your machine: oarlock simulate FILE",
        )
    raw = validation.fields(text, source="the text", hint="A scenario has `jobs` or `recorded`.")
    if isinstance(raw.get("recorded"), dict):
        raise errors.InvalidInput("a scenario here cannot name files", path="recorded", hint="Send the CSV alone.")
    return raw


def is_table(text: str) -> bool:
    """Return whether the text is a table: its first line has commas, and no colon or bracket."""
    first = text.lstrip().partition("\n")[0]
    return "," in first and not set(":{[#") & set(first)


async def _store(services: provided.Services, files: dict[str, bytes], policies: tuple[str, ...]) -> str:
    """Store a snapshot of the files, and return its digest. Raises InvalidInput for a scenario that is not valid."""
    place = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="oarlock-simulation-"))
    try:
        packed = await asyncio.to_thread(_packed, place, files)
        await _check(place / "code", policies)
        limit = services.snapshot_limit_bytes
        await services.blobs.put(packed.digest, _chunks(packed.path), limit_bytes=limit)
    finally:
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
    return packed.digest


def _packed(place: Path, files: dict[str, bytes]) -> snapshots.Snapshot:
    code = place / "code"
    code.mkdir()
    for name, content in files.items():
        (code / name).write_bytes(content)
    return snapshots.pack(code, place / "cache")


async def _check(code: Path, policies: tuple[str, ...]) -> None:
    """Raise the refusal of the job's own program. One that takes too long is left to the job."""
    command = (sys.executable, *_RECORDER, "--check", SCENARIO, *policies)
    reading = await asyncio.create_subprocess_exec(
        *command,
        cwd=code,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said = b""
    try:
        async with asyncio.timeout(CHECK_S):
            said, _ = await reading.communicate()
    except TimeoutError:
        pass
    finally:
        if reading.returncode is None:
            reading.kill()
            await reading.wait()
    if said:
        raise msgspec.convert(msgspec.json.decode(said), Refusal).error()


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    yield await asyncio.to_thread(path.read_bytes)


async def _last_line(services: provided.Services, job: nouns.Job) -> str:
    if job.attempt is None:
        return ""
    query = storage.LogQuery(job=job.id, attempt=job.attempt.number, tail=1)
    lines = [line async for line in services.logs.read(query)]
    return lines[-1].text if lines else ""


async def _outcome(services: provided.Services, job: str) -> simulations.Outcome | None:
    """Return the file that the job has left, None where it is missing or not valid."""
    found = next((one for one in await services.files.listing(job) if one.path.endswith(f"/{simulations.FILE}")), None)
    if found is None:
        return None
    file = await services.files.open(job, found.path)
    try:
        if file.size_bytes > MOST_OUTCOME_BYTES:
            return None
        parts: list[bytes] = []
        while chunk := await file.read(sum(map(len, parts)), CHUNK_BYTES):
            parts.append(chunk)
            if len(parts) * CHUNK_BYTES > 2 * MOST_OUTCOME_BYTES:
                return None
    finally:
        file.close()
    try:
        return await asyncio.to_thread(msgspec.json.decode, b"".join(parts), type=simulations.Outcome)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


ROUTES: tuple[routes.Route, ...] = (
    routes.look("/api/v1/workloads", choices, "the workloads and the policies of simulations", simulations.Choices),
    routes.Route(
        method="POST",
        path="/api/v1/simulations",
        handler=start,
        needs=users.Right.USER,
        summary="run a simulation as a job; a user has one at a time",
        body=simulations.Request,
        answer=nouns.Job,
        status=201,
        limit_bytes=MOST_TEXT_BYTES,
    ),
    routes.look(
        "/api/v1/simulations/{job}",
        show,
        "a simulation: the phase of its job, its progress and, in the end, its outcome",
        simulations.Simulation,
    ),
)
