"""Pages that stand still: a server in this process with fixed jobs, whose clock does not move, behind a real socket.

The same page has the same text and the same pixels in every run, so that both can be compared with what is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import uvicorn
from tests.api import rig as rigs
from tests.api.cluster import test_history
from tests.api.jobs import test_outlook
from tests.web import browsers

from oarlock.data import storage
from oarlock.spec import attempts, events, intents, jobs, phases, refusals
from oarlock.spec.cluster import pools, samples
from oarlock.spec.simulator import recordings, simulations

EMPTY = {
    "home": "/",
    "jobs": "/jobs",
    "compare": "/compare",
    "cluster": "/cluster",
    "pools": "/pools",
    "pool": "/pools/edit?pool=default",
    "pool-removal": "/pools/remove?pool=default",
    "usage": "/usage",
    "submit": "/submit",
    "simulate": "/simulate",
    "users": "/users",
    "server": "/server",
    "sessions": "/sessions",
    "login": "/login",
    "missing": "/nowhere",
}
FULL = {
    **EMPTY,
    "job-waits": "/jobs/waits",
    "job-runs": "/jobs/runs?sections=all",
    "job-failed": "/jobs/fails?sections=all",
    "job-halted": "/jobs/rests",
    "rank": "/jobs/fails/ranks/worker-0",
    "log": "/jobs/fails/log",
    "log-search": "/jobs/fails/log?q=line&times=yes",
    "metrics": "/jobs/runs/metrics",
    "metric": "/jobs/runs/metrics?name=loss",
    "cluster-node": "/cluster?node=here",
    "compare": "/compare?job=runs&job=fails&name=loss",
    "tokens": "/users?user=ann",
    "pool-below": "/pools/remove?pool=vision",
    "jobs-none": "/jobs?text=nothing+like+this",
    "log-none": "/jobs/loads/log",
    "metrics-none": "/jobs/loads/metrics",
}
MORE = {
    "ranks": "/jobs/wide?sections=ranks",
    "ranks-before": "/jobs/again?sections=ranks&attempt=1",
    "rank-before": "/jobs/again/ranks/worker-1?attempt=1",
    "simulation": "/simulate/simulation",
}
ANSWERS: dict[str, tuple[str, dict[str, str], str]] = {
    "revoke": ("/users?user=ann", {}, "button[value=revoke]"),
    "user-removal": ("/users?user=vera", {}, "button[value=remove]"),
    "user-with-jobs": ("/users?user=ann", {}, "button[value=remove]"),
    "sure-halt": ("/jobs/runs", {}, "button:text-is('Halt')"),
    "sure-resume": ("/jobs/rests", {}, "button:text-is('Resume')"),
    "sure-cancel": ("/jobs/runs", {}, "button:text-is('Cancel')"),
    "sure-remove": ("/jobs/fails", {}, "button:text-is('Remove')"),
    "pool-preview": ("/pools/edit?pool=default", {"input[name=limit]": "gpus=4"}, "button[value=preview]"),
    "token": ("/users?user=bob", {"input[name=note]": "laptop"}, "button[value=token]"),
    "refused-user": ("/users", {"input[name=user]": "Not a name"}, "button[value=add]"),
    "refused-pool": ("/pools/edit?pool=default", {"input[name=limit]": "gpus=many"}, "button[value=preview]"),
    "refused-file": ("/submit", {"#text": "command: python a.py\npriority: many"}, "button.primary"),
}
"""The pages that answer a form of the server with jobs: where it is, what is typed, and what is pressed."""

REFUSED = {"refused-user": "/users", "refused-pool": "/pools/edit"}
"""The answers of a status that browsers note on the console, and the addresses that give them."""

IN_PLACE = {"refused-file": "#verdict:has-text('whole number')"}
"""The answers that a script shows in the page, with what tells that they are there."""


PAGES = {"empty": EMPTY, "full": FULL, "more": MORE}
"""The pages of a server without jobs, of one with jobs, and of one with a large job and a simulation, by name."""

UNSHOWN = {
    "/compare.csv": "a table",
    "/compare/numbers": "numbers for a script",
    "/compare/points.csv": "a table",
    "/jobs.csv": "a table",
    "/jobs/{job}/job.yaml": "a job file",
    "/jobs/{job}/log.txt": "the log as it is",
    "/jobs/{job}/log/lines": "rows for a script",
    "/jobs/{job}/metrics/numbers": "numbers for a script",
    "/live": "a stream",
}
"""The paths that answer with no page, and with what they do."""


RUNS = [
    recordings.Curves(
        run=run, devices=2, over=600.0, completion=((60.0 + late, 0.5), (600.0, 1.0)),
        held=((0.0, 2.0), (300.0, 1.0), (600.0, 0.0)), useful=((10.0, 2.0), (290.0, 1.0), (600.0, 0.0)),
        rows=("n0, device 0", "n0, device 1"),
        bars=(recordings.Bar(0, 0, 0.0, 600.0, 10.0, 600.0), recordings.Bar(1, 1, 0.0, 300.0, 10.0, 290.0)),
    )
    for run, late in (("fifo", 0.0), ("las", 30.0))
]  # fmt: skip
OUTCOME = {
    "reports": [],
    "titles": ["", "fifo", "las"],
    "lines": [["time to the end, mean", "5m 30s", "5m 45s"]],
    "curves": RUNS,
}


class Still(NamedTuple):
    """A server that stands still: its address, the cookies of its administrator's one session, and its parts."""

    url: str
    cookies: list[Any]
    rig: browsers.WebRig


@contextlib.asynccontextmanager
async def serving(folder: Path, *, full: bool = False, more: bool = False) -> AsyncIterator[Still]:
    rig = browsers.WebRig(folder / "server")
    with pytest.MonkeyPatch.context() as patch:
        rig.take_time(patch)
        test_outlook.stretch(rig)
        async with rig.running():
            await rig.prepare()
            if full:
                await _fill(rig)
            if more:
                await _fill_more(rig)
            config = uvicorn.Config(rig.app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            patch.setattr(server, "capture_signals", contextlib.nullcontext)
            serving = asyncio.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110  (uvicorn tells it by this flag alone)
                await asyncio.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            url = f"http://127.0.0.1:{port}"
            async with rig.browser("root") as browser:
                cookies = [{"name": one.name, "value": one.value or "", "url": url} for one in browser.cookies.jar]
            yield Still(url, cookies, rig)
            rig.wakes.close()
            server.should_exit = True
            await serving


async def _fill(rig: browsers.WebRig) -> None:
    for one in (
        pools.Pool(name="default", share={"gpus": 99.0}),
        pools.Pool(name="research", share={"gpus": 1.0}),
        pools.Pool(name="vision", parent="research", limit={"gpus": 1.0}),
    ):
        await rig.store.write(lambda tx, one=one: tx.put_pool(one))
    await test_history.ran(rig, "before", 600)
    await _failed(rig)
    halted = await rig.submit("ann", name="rests", max_restarts=0)
    await rig.happen(halted.id, events.Intended(intent=intents.Intent.HALT, by="ann"))
    for number in range(5):
        await rig.end((await rig.launch(await rig.submit("bob", name=f"done-{number}"))).id)
    runs = await test_outlook.fill(rig, "runs", 1, "ann", timeout="1h", roles={"worker": {"gpus": 1}})
    await _told(rig, runs)
    silent = await rig.launch(await rig.submit("bob", name="loads"))
    await rig.submit("ann", name="waits", roles={"worker": {"count": 2, "gpus": 1}})
    behind = await rig.submit("bob", name="behind", timeout="30m", roles={"worker": {"gpus": 2}})
    holder = refusals.Holder(job="", name="runs", owner="ann", pool="default", amount={"gpus": 1.0})
    no_room = refusals.Refusal(code=refusals.Code.NO_CAPACITY, message="It needs 2 GPUs; 1 is free.", holders=(holder,))
    await rig.happen(behind.id, events.Refused(refusal=no_room))
    for age in (3900.0, 3600.0, 300.0):
        use = samples.PoolUse(used={"gpus": 1.0}, entitled={"gpus": 1.5})
        devices = {"h100": samples.Devices(1.0, 0.5, 0.25, 0.25)}
        one = samples.Sample(at=rig.clock.now - age, devices=devices, pools={"default": use})
        await rig.store.write(lambda tx, one=one: tx.add_sample(one))
    rig.clock.now += 90
    _measured(rig, silent)


async def _fill_more(rig: browsers.WebRig) -> None:
    """A job with more ranks than a table shows, in several phases, one that runs again after its ranks failed together,
    and a simulation with its results.
    """
    wide = await rig.launch(await rig.submit("ann", name="wide", roles={"worker": {"count": 24, "cpus": 0.25}}))
    for index in range(20):
        await rig.happen(wide.id, events.TaskRegistered(key=rigs.key_of(wide, index=index), address="127.0.0.1"))
    for index in range(10):
        await rig.happen(wide.id, events.TaskReported(key=rigs.key_of(wide, index=index), phase="PROCESSING"))
    three = {"worker": {"count": 3, "cpus": 0.25}}
    begun = await rig.launch(await rig.submit("ann", name="again", roles=three))
    failed = await rig.end(begun.id, code=1, last_lines=("ConnectionResetError: Connection reset by peer",))
    first = msgspec.structs.replace(failed.attempts[0], no_restart="")
    again = msgspec.structs.replace(failed, phase=phases.Phase.QUEUED, ended_at=None, attempts=(first,))
    rig.store._state._jobs[again.id] = again
    await rig.launch(again)
    async with rig.browser("root") as browser:
        answer = await browser.post("/simulate", data={"workload": "small-first"}, headers=browsers.OURS)
    job = await rig.launch(await rig.job(answer.headers["location"].removeprefix("/simulate/")))
    stored = await rig.end(job.id)
    rig.store._state._jobs[job.id] = msgspec.structs.replace(stored, phase=phases.Phase.COMPLETED)
    place = Path(rig.services.about.home) / "files" / job.id / "worker-0" / "attempt-1"
    place.mkdir(parents=True)
    (place / simulations.FILE).write_bytes(msgspec.json.encode(OUTCOME))


async def _failed(rig: browsers.WebRig) -> jobs.Job:
    job = await rig.launch(await rig.submit("ann", name="fails", max_restarts=0, env={"SEED": "seven"}))
    key = rigs.key_of(job)
    await rig.happen(
        job.id,
        events.TaskRegistered(key=key, address="127.0.0.1"),
        events.TaskReported(key=key, phase="PROCESSING"),
        events.StacksAsked(attempt=1, task="worker-0", message="it hangs"),
        events.StacksTaken(key=key, request=1, stacks={"0": 'File "train.py", line 88, in step\n  all_reduce'}),
    )
    text = b"".join(b"line %d\n" % number for number in range(40))
    red = b"\x1b[31mred\x1b[0m \x1b[42mground\x1b[0m\n"
    await rig.logs.append(key, "stdout.0", 0, text + red, at=rig.clock.now)
    await rig.logs.append(key, "stderr.0", 0, b"Traceback: it has failed\n", at=rig.clock.now + 1)
    rig.clock.now += 30
    return await rig.end(job.id, code=3, last_lines=("Traceback: it has failed",))


async def _told(rig: browsers.WebRig, job: jobs.Job) -> None:
    key = rigs.key_of(job)
    rig.clock.now += 300
    progress = attempts.Progress(step=600, total_steps=1000, at=rig.clock.now, loss=0.25, step_s=0.5, sync_s=0.1)
    await rig.happen(job.id, events.TaskReported(key=key, phase="PROCESSING", progress=progress))


def _measured(rig: browsers.WebRig, silent: jobs.Job) -> None:
    """Let all jobs but one have metrics."""
    names = ["loss", "train/accuracy", "train/rate"]

    async def series(job: str, wanted: list[str] | None = None, **asked: Any) -> list[storage.Series]:
        begin = rig.clock.now - 300
        return [
            storage.Series(
                task="worker-0",
                process=0,
                name=one,
                count=100,
                points=tuple(storage.Point(step, begin + step, 10.0 / step + place) for step in range(1, 101)),
            )
            for place, one in enumerate(wanted or await named(job))
        ]

    async def named(job: str) -> list[str]:
        return [] if job == silent.id else names

    rig.metrics.series = series  # type: ignore[method-assign]
    rig.metrics.names = named  # type: ignore[method-assign]
