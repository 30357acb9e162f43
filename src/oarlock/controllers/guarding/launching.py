"""The launches of gangs: several at a time where the backend can, else one after the other.

    begin   start a task that makes the gang, while the guardian's next ticks go on; or let the gang wait for its turn
    take    return the outcomes since the last call, to be recorded

A launch is bounded (`deadlines.LAUNCH_BOUND_S`) and belongs to an epoch. When that ends, or the attempt is to end, the
launch is broken off: every request may be repeated, and the pods that were made are observed. Nothing else is done
for a job before its launch has ended, so that nothing is made after the release. The launch of a gang that another
server has bound in part has the rest of that server's time alone.

A launch that ends makes room for the next one at once: in a burst of thousands, the guardian's ticks are too rare.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from oarlock.backends import backends, waits
from oarlock.controllers import bulkwrites
from oarlock.controllers.guarding import assigning
from oarlock.lifecycle import deadlines, stepping
from oarlock.scheduler import gangs
from oarlock.spec import errors, events, holdings, jobs, resources
from oarlock.spec.access import kubernetessecrets
from oarlock.spec.cluster import nodes
from oarlock.spec.process import failpoints
from oarlock.spec.protocol import tasktokens
from oarlock.spec.reconciling import actions

CLOSE_S = 4.0
"""The time that launches have to end by themselves when the server is told to end."""

WAITING_TIMES = 4
"""So many times the tasks that the backend makes at the same time wait for their turn, and no more: a gang that waits
longer keeps the facts of its plan for too long."""

PLANNED_NODE = "node-planned"
"""Stands for the nodes of a job that is only planned."""

OwnerOf = Callable[[jobs.Job], Awaitable[resources.Resource | None]]
"""Returns the object of the cluster that owns the tasks of a job. Raises Unavailable."""

References = tuple[kubernetessecrets.Named, ...]
ReferencesOf = Callable[[jobs.Job], Awaitable[References]]
"""Returns those of the job's secrets that refer to Kubernetes Secrets."""


Manifest = dict[str, Any]
TasksOf = Callable[[resources.Resource | None], Sequence[backends.TaskLaunch]]
"""Returns the tasks of a planned job as they are with the object that would own them."""


class _Waiting(NamedTuple):
    """A launch that waits for its turn."""

    job: jobs.Job
    action: actions.Launch
    held: Collection[holdings.Holding]
    known: dict[str, nodes.Node]
    still: backends.Still


class Launching:
    """Belongs to one event loop."""

    def __init__(
        self,
        backend: backends.Backend,
        settings: assigning.Settings,
        *,
        clock: Callable[[], float],
        report: bulkwrites.Report,
        owner: OwnerOf | None = None,
        references: ReferencesOf | None = None,
    ) -> None:
        self._owner = owner
        self._references = references
        self._backend = backend
        self._settings = settings
        self._clock = clock
        self._report = report
        self._underway: dict[str, tuple[asyncio.Task[None], int]] = {}  # by job, with the number of its tasks
        self._making = 0  # tasks
        self._waiting: collections.OrderedDict[str, _Waiting] = collections.OrderedDict()  # by job, in their order
        self._tasks_waiting = 0
        self._outcomes: dict[str, events.AnyEvent] = {}  # by job

    @property
    def underway(self) -> Collection[str]:
        """Ids of the jobs with a launch that has not ended."""
        return self._underway.keys()

    @property
    def goes_on(self) -> bool:
        """Whether any launch waits, or is under way."""
        return bool(self._underway or self._waiting)

    def is_begun(self, job_id: str) -> bool:
        """Return whether a launch of the job waits, is under way, or has an outcome that was not taken yet."""
        return job_id in self._underway or job_id in self._waiting or job_id in self._outcomes

    async def begin(
        self,
        job: jobs.Job,
        action: actions.Launch,
        held: Collection[holdings.Holding],
        known: dict[str, nodes.Node],
        still: backends.Still,
    ) -> bool:
        """Launch these tasks, at once or in their turn; return False where too many wait for their turn.

        `still` says whether the epoch goes on.
        """
        if self._backend.tasks_at_once == 1:
            self._outcomes[job.id] = await self._launch(job, action, held, known, still)
            return True
        if self._tasks_waiting >= WAITING_TIMES * self._backend.tasks_at_once:
            return False
        self._waiting[job.id] = _Waiting(job, action, held, known, still)
        self._tasks_waiting += len(action.tasks)
        self._begin_waiting()
        return True

    def _begin_waiting(self) -> None:
        """Begin the launches that wait, as far as the backend can make more tasks at the same time."""
        while self._waiting:
            first = next(iter(self._waiting.values()))
            count = len(first.action.tasks)
            if self._making and self._making + count > self._backend.tasks_at_once:
                return
            self._drop(first.job.id)
            task = asyncio.create_task(self._one(first), name=f"launch {first.job.id}")
            self._underway[first.job.id] = task, count
            self._making += count
            task.add_done_callback(functools.partial(self._ended, first.job.id))

    async def _one(self, launch: _Waiting) -> None:
        with contextlib.suppress(errors.StaleEpoch):
            self._outcomes[launch.job.id] = await self._launch(*launch)

    def _ended(self, job_id: str, _: asyncio.Task[None]) -> None:
        """Take note that a launch has ended, also one that was canceled before its first step."""
        _, count = self._underway.pop(job_id)
        self._making -= count
        self._begin_waiting()

    def _drop(self, job_id: str) -> None:
        self._tasks_waiting -= len(self._waiting.pop(job_id).action.tasks)

    def _drop_all(self) -> None:
        self._waiting.clear()
        self._tasks_waiting = 0

    def take(self) -> list[tuple[str, events.AnyEvent]]:
        """Return the outcomes since the last call, by job."""
        taken, self._outcomes = self._outcomes, {}
        return list(taken.items())

    def cancel(self, job_id: str) -> None:
        """Break the job's launch off. It is under way until its requests have ended."""
        if job_id in self._waiting:
            self._drop(job_id)
        elif job_id in self._underway:
            self._underway[job_id][0].cancel()

    def cancel_all(self) -> None:
        """Break all launches off and forget their outcomes: another server decides what becomes of the tasks."""
        self._drop_all()
        for task, _ in self._underway.values():
            task.cancel()
        self._outcomes = {}

    async def close(self) -> None:
        """Return once no launch is under way: those that do not end soon are broken off."""
        self._drop_all()
        tasks = [task for task, _ in self._underway.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _launch(
        self,
        job: jobs.Job,
        action: actions.Launch,
        held: Collection[holdings.Holding],
        known: dict[str, nodes.Node],
        still: backends.Still,
    ) -> events.AnyEvent:
        """Make the tasks; return the event that says whether that went well. Raises StaleEpoch."""
        failpoints.hit("guardian.before_launch")
        waited: dict[waits.Wait, None] = {}
        loop = asyncio.get_running_loop()
        end = loop.time() + self._within_s(action)
        try:
            with waits.noting() as waited:
                async with asyncio.timeout_at(end):
                    backends.check(still)
                    _check_places(action, known)
                    owner = await self._owner(job) if self._owner is not None else None
                    secrets = await self._references(job) if self._references is not None else ()
                    launches = _launches(job, action, held, known, self._settings, owner, secrets)
                    await self._backend.launch(launches, still=still, within_s=end - loop.time())
                    backends.check(still)  # the outcome belongs to the epoch too
        except errors.StaleEpoch:
            raise
        except errors.OarlockError as error:
            return events.LaunchFailed(attempt=action.attempt, reason=error.message)
        except TimeoutError:
            reason = ": ".join(filter(None, ["the backend did not answer in time", waits.why(waited)]))
            return events.LaunchFailed(attempt=action.attempt, reason=reason)
        except Exception as error:  # noqa: BLE001 - whatever it is, the gang must not stay half-made
            self._report(job.id, error)
            return events.LaunchFailed(attempt=action.attempt, reason=f"{type(error).__name__}: {error}")
        failpoints.hit("guardian.after_launch")
        whole = job.live is not None and job.live.launched_at is None
        made = () if whole else tuple(task.key(job.id, action.attempt) for task in action.tasks)
        return events.Launched(attempt=action.attempt, tasks=made)

    def _within_s(self, action: actions.Launch) -> float:
        """Return the time that the launch has from now on."""
        left_s = math.inf if action.until is None else action.until - self._clock()
        return min(deadlines.LAUNCH_BOUND_S, left_s)


def _check_places(action: actions.Launch, known: dict[str, nodes.Node]) -> None:
    """Raise Unavailable where a task is to be started again on a node that was closed since its gang was placed."""
    for task in action.tasks:
        node = known.get(task.node)
        if task.incarnation > 1 and node is not None and not node.open:
            why = node.reason or ", ".join(map(str, node.taints)) or "not ready"
            raise errors.Unavailable(
                f"{task.name} cannot start again on {node.name}, which takes no new tasks ({why})",
                hint="The gang looks for another place.",
            )


def rehearsed(
    job: jobs.Job, settings: assigning.Settings, owner: resources.Resource | None = None, secrets: References = ()
) -> list[backends.TaskLaunch]:
    """Return the launches of a job that is only planned, at the size that it asks for. Nodes are not chosen yet, and
    the tokens are not valid. `owner` would own the tasks, and `secrets` refer to Kubernetes Secrets.
    """
    settings = msgspec.structs.replace(settings, task_secret=bytes(tasktokens.SECRET_BYTES))
    claims = tuple(
        holdings.Holding(job=job.id, attempt=1, role=task.role, index=task.index, node=PLANNED_NODE, amount=task.amount)
        for task in gangs.gang(job).tasks
    )
    admitted = stepping.step(job, events.Admitted(attempt=1, holdings=claims), job.created_at)
    assert admitted.live is not None
    return _launches(
        admitted, actions.Launch(attempt=1, tasks=admitted.live.tasks), claims, {}, settings, owner, secrets
    )


def rehearsal(
    render: Callable[[jobs.Job, TasksOf], Awaitable[list[Manifest]]],
    references: ReferencesOf,
    settings: assigning.Settings,
) -> Callable[[jobs.Job], Coroutine[Any, Any, list[Manifest]]]:
    """Return a function that lets a backend render the launch of a job that is only planned."""

    async def manifests(job: jobs.Job) -> list[Manifest]:
        secrets = await references(job)
        return await render(job, lambda owner: rehearsed(job, settings, owner, secrets))

    return manifests


def _launches(
    job: jobs.Job,
    action: actions.Launch,
    held: Collection[holdings.Holding],
    known: dict[str, nodes.Node],
    settings: assigning.Settings,
    owner: resources.Resource | None = None,
    secrets: References = (),
) -> list[backends.TaskLaunch]:
    gang = job.live.tasks if job.live is not None else ()
    claims = {(claim.role, claim.index): claim for claim in held}
    container = backends.Container(
        image=job.spec.image,
        framework=job.spec.framework,
        gpus=any(role.gpus for role in job.spec.roles.values()),
        volumes=job.spec.volumes,
        job_name=job.name,
        pool=job.pool,
        owner=job.owner,
        continues=job.continues.path if job.continues is not None else "",
        resource=owner,
        secrets=secrets,
    )
    return [
        backends.TaskLaunch(
            key=task.key(job.id, action.attempt),
            assignment=assigning.assignment(
                job,
                action.attempt,
                task,
                known.get(task.node),
                settings,
                share_milli=claims[task.role, task.index].amount.gpu_milli,
            ),
            holding=claims[task.role, task.index],
            limit=assigning.limit(job.spec, task.role, () if settings.shell else gang),
            container=container,
        )
        for task in action.tasks
    ]
