"""The Kubernetes backend: a task is a pod, made and bound by us, and observed by a watch.

    launch   Secret and pods ──> each pod as the API server returned it: does it still fit? ──> bind all
    observe  the pods of our namespace with our label, and those that are gone since, until they are discarded
    kill     delete by UID, with a second's grace: the object goes once the kubelet has confirmed the end

All knowledge is read from the cluster: the server after a killed one finds the same pods. A pod that was deleted while
no server looked is not listed; for a task that was made that means gone.

Methods are for one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog

from oarlock.backends import backends
from oarlock.backends.kubernetes import (
    barriers,
    boundpods,
    closures,
    clusterstate,
    noderequests,
    ownimage,
    places,
    preemptions,
    projecting,
    reaching,
    remains,
    slices,
    steering,
    tensorboards,
    volumes,
)
from oarlock.backends.kubernetes.apiserver import answers, client, clusterclocks, credentials, objects
from oarlock.backends.kubernetes.pods import commands, labels, ownpods, podstates, rendering
from oarlock.backends.kubernetes.site import Mode, Site
from oarlock.spec import attempts, errors, holdings, jobs, resources
from oarlock.spec.cluster import nodes as machines
from oarlock.spec.reconciling import observations

AT_ONCE = 32
"""Requests of one launch that are under way together."""
TASKS_AT_ONCE = client.CONNECTIONS
"""Tasks in launches that are under way together. More would wait for a connection, and all of them for too long."""
KILL_GRACE_S = 1
"""The kubelet waits so long between SIGTERM and SIGKILL. With 0 the object would go before the processes."""
SYNC_S, RENEW_S = 30.0, 300.0
"""The longest time that a question waits for the first look at the cluster, and a new leader for another one."""

State = observations.State

_REFUSALS = (errors.Forbidden, errors.InvalidInput, errors.NotFound, errors.TooLarge)
"""Answers to a request that would be the same the next time."""

T = TypeVar("T")

_log = structlog.get_logger(__name__)


async def connect(
    site: Site,
    environ: Mapping[str, str],
    *,
    clock: Callable[[], float],
    wall: Callable[[], float],
    monotonic: Callable[[], float],
) -> KubernetesBackend:
    """Return a backend that follows the cluster of the kubeconfig, else of the pod that this process runs in.

    `clock` is the server's clock; by `wall` the cluster's credentials expire.

    Raises InvalidInput where there is neither, and Unavailable or Forbidden where the cluster does not let us in.
    """
    api = client.Client(credentials.find(environ, context=site.context, clock=wall, monotonic=monotonic))
    try:
        await api.version()
        if not site.image:
            site = msgspec.structs.replace(site, image=await ownimage.find(api, environ))
    except BaseException:
        await api.close()
        raise
    opened = KubernetesBackend(api, site, clock=clock, monotonic=monotonic)
    opened.open()
    return opened


class KubernetesBackend:
    """`open` starts the watches, `close` ends them; pods run on."""

    name = "kubernetes"
    tasks_at_once = TASKS_AT_ONCE

    def __init__(
        self, api: client.Client, site: Site, *, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._api = api
        self._site = site
        self._projection = projecting.Projection(api, site, monotonic=monotonic)
        self._changed = asyncio.Event()
        self._state = clusterstate.ClusterState(api, site, monotonic=monotonic, changed=self._cluster_changed)
        self._nodes_changed = False
        theirs = clusterclocks.ClusterClock(clock)
        api.dated = theirs.hear
        self._own = ownpods.OwnPods(
            api,
            self._path("pods"),
            site,
            clock=clock,
            ours=theirs.ours,
            monotonic=monotonic,
            changed=self._changed.set,
            missing=self._missing,
        )
        self._volumes = volumes.Volumes(
            api, site, monotonic=monotonic, changed=self._cluster_changed, alike=self._state.alike
        )
        self._slices = slices.Slices(api, site, monotonic=monotonic, changed=self._cluster_changed)
        self._requests = noderequests.NodeRequests(
            api, site, projection=self._projection, lacking=self._volumes.lacking
        )
        self._places = places.Places(self._state, self._own, monotonic=monotonic)
        self._barriers = barriers.Barriers(
            site, self._state, self._own, self._places, self._volumes, self._slices, monotonic=monotonic
        )
        self._bound = boundpods.BoundPods(monotonic=monotonic)
        self._claims = steering.Claims(api, site, monotonic=monotonic)
        self._devices = steering.DeviceClaims(api, site, monotonic=monotonic)
        self._monotonic = monotonic
        self._preemptions = preemptions.Preemptions(api, site.namespace, changed=self._changed.set)
        self._killed: set[str] = set()  # UIDs of pods that we have deleted
        self._gone: dict[attempts.TaskKey, tuple[str, observations.Observed]] = {}  # each with the pod's UID
        self._seen: dict[attempts.TaskKey, tuple[objects.Pod, str, str, observations.Observed]] = {}
        self._discarded: set[str] = set()  # UIDs of pods that are about to go
        self._running: list[asyncio.Task[None]] = []

    @property
    def site(self) -> Site:
        """The facts of the cluster, with the server's own image."""
        return self._site

    def open(self) -> None:
        """Begin to follow the cluster."""
        followed = (self._state, self._own, self._volumes, self._slices)
        self._running = [asyncio.create_task(one.run()) for one in followed]
        if self._site.node_classes:
            self._running.append(asyncio.create_task(self._requests.follow()))

    def capabilities(self) -> dict[str, str]:
        """Return facts about this cluster for `GET /api/v1/server`."""
        return {"isolation": "containers", "namespace": self._site.namespace, "cluster": self._api.access.server}

    def provisioner(self) -> noderequests.NodeRequests:
        """Return the way to request nodes of this cluster's autoscaler."""
        return self._requests

    def remains(self) -> remains.Remains:
        """Return the way to the objects of jobs beside their pods."""
        return remains.Remains(self._api, self._site, monotonic=self._monotonic)

    def boards(self, server: str, task_secret: bytes) -> tensorboards.TensorBoards:
        """Return the way to run a TensorBoard beside each job."""
        return tensorboards.TensorBoards(
            self._api, self._site, self._projection.owner, server=server, secret=task_secret
        )

    async def owner(self, job: jobs.Job) -> resources.Resource | None:
        """Return the OarlockJob that owns the pods of the job, made where there is none yet; None where none can."""
        return await self._projection.owner(job)

    async def check_reached(self, url: str) -> None:
        """Let pods try whether they reach the server at `url`. Raises Unavailable where they do not."""
        why = ""
        self._running.append(asyncio.create_task(reaching.sweep(self._api, self._site)))
        try:
            await self._synced()
            ready = [node.name for node in self._state.nodes() if node.ready and not node.taints]
            if not ready:
                raise errors.Unavailable("no node takes a pod now", hint="Look at the nodes: kubectl get nodes")
            why = await reaching.check(self._api, self._site, ready, url)
        except errors.OarlockError as error:
            _log.warning("kubernetes.reach_unknown", url=url, why=str(error))
        if why:
            raise errors.Unavailable(
                f"pods do not reach the server at {url}: {why}",
                hint=f"{reaching.INSIDE} Or let it listen at an address that pods reach, and name its URL:"
                " `server` in [kubernetes].",
            )

    async def nodes(self) -> list[machines.Node]:
        await self._synced()
        self._nodes_changed = False
        return [self._barriers.marked(node) for node in self._state.nodes()]

    def nodes_changed(self) -> bool:
        return self._nodes_changed

    async def launch(
        self,
        tasks: Sequence[backends.TaskLaunch],
        *,
        still: backends.Still = backends.always,
        within_s: float = math.inf,
    ) -> None:
        """Make the pods that are not there, and bind all of them. A task that has ended is not made again."""
        until = self._monotonic() + steering.bound_s(within_s)
        await self._synced()
        wanted = [one for one in tasks if not self._has_ended(one.key)]
        try:
            await self._launch(wanted, still, until)
        except BaseException:
            self._own.release([one.key for one in wanted])
            raise
        finally:
            self._changed.set()

    async def manifests(
        self,
        job: jobs.Job,
        tasks: Callable[[resources.Resource | None], Sequence[backends.TaskLaunch]],
        boards: tensorboards.TensorBoards | None = None,
    ) -> list[rendering.Manifest]:
        """Return the objects that are created for the planned job, in their order. `tasks` gives its tasks, as they are
        with the OarlockJob that would own them, and `boards` its TensorBoard.

        Raises InvalidInput, and Unavailable where a launch would fail: a claim that is not there, a cluster without
        claims of devices.
        """
        owner = await self._projection.planned(job)
        launches = tasks(owner)
        found = (await self._rendered(launches, bound=self._bound.is_possible(launches))).gang
        board = boards.planned(job, owner) if boards is not None else []
        return [*await self._projection.manifests(job), *found.secrets, *found.pods.values(), *board]

    async def renew(self) -> None:
        try:
            async with asyncio.timeout(RENEW_S):
                await self._own.renew()
        except TimeoutError as error:
            raise self._unread("read again") from error

    async def observe(self) -> list[observations.Observed]:
        await self._synced()
        found = {key: podstates.preempted(seen, self._preemptions.of(uid)) for key, (uid, seen) in self._gone.items()}
        for key, pod in self._own.by_key.items():
            if pod.metadata.uid not in self._discarded:
                found[key] = podstates.preempted(self._observed(key, pod), self._preemptions.of(pod.metadata.uid))
        if len(self._seen) > 2 * len(self._own.by_key):
            self._seen = {key: seen for key, seen in self._seen.items() if key in self._own.by_key}
        if self._discarded:
            self._discarded &= {pod.metadata.uid for pod in self._own.by_key.values()}
        return list(found.values())

    async def kill(self, keys: Sequence[attempts.TaskKey]) -> None:
        await self._synced()
        there = [pod for key in dict.fromkeys(keys) if (pod := self._own.by_key.get(key)) is not None]
        await self._all(self._delete(pod, KILL_GRACE_S) for pod in there if podstates.state_of(pod) is not State.GONE)

    async def leftovers(self, key: attempts.TaskKey) -> list[backends.Leftover]:
        """Return nothing: a pod's files end with it. Its agent delivers logs and metrics before it goes."""
        return []

    async def discard(self, job: str, attempt: int) -> None:
        await self._synced()
        theirs = [(key, pod) for key, pod in self._own.by_key.items() if (key.job, key.attempt) == (job, attempt)]
        for key, pod in theirs:
            if podstates.state_of(pod) is not State.GONE:
                raise errors.Conflict(f"{key} still runs", hint="An attempt is discarded once all of it is gone.")
        chosen = labels.of_attempt(self._site.installation, job, attempt)
        await self._api.delete_all(self._path("secrets"), {"labelSelector": labels.selector(chosen)})
        uids = {pod.metadata.uid for _, pod in theirs}
        self._discarded |= uids
        try:
            # Nothing of them runs, so that the kubelet need not be waited for.
            await self._all(self._delete(pod, 0) for _, pod in theirs)
        except BaseException:
            self._discarded -= uids  # pods that are observed again are discarded again
            raise
        self._gone = {key: seen for key, seen in self._gone.items() if (key.job, key.attempt) != (job, attempt)}

    async def exec(
        self, key: attempts.TaskKey, command: Sequence[str], *, tty: bool = False, rows: int = 24, columns: int = 80
    ) -> backends.ExecProcess:
        await self._synced()
        pod = self._own.by_key.get(key)
        if pod is None or pod.status.phase != "Running":
            raise errors.Conflict(f"{key} does not run", hint="`oarlock show` tells the state of each task.")
        path = f"{self._path('pods')}/{pod.metadata.name}"
        inside = [*rendering.INSIDE, *command]
        return await commands.start(self._api, path, rendering.TASK, inside, tty=tty, rows=rows, columns=columns)

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._preemptions.close()
        await self._api.close()

    # Launching

    def _has_ended(self, key: attempts.TaskKey) -> bool:
        pod = self._own.by_key.get(key)
        return key in self._gone if pod is None else podstates.state_of(pod) is not State.RUNNING

    async def _launch(self, wanted: Sequence[backends.TaskLaunch], still: backends.Still, until: float) -> None:
        there = {one.key: pod for one in wanted if (pod := self._own.by_key.get(one.key)) is not None}
        new = [one for one in wanted if one.key not in there]
        rendered = await self._rendered(new, bound=len(wanted) == 1 and self._bound.may(new))
        bound = rendered.bound
        nodes = {one.key: one.holding.node for one in wanted}
        fit = functools.partial(self._check_fit, wanted, {one.key: one.holding.amount for one in wanted})
        try:
            self._places.take(nodes)  # first: the check reserves the amounts, and with them the tasks count as there
            fit()
            asked = still if rendered.steered or bound else backends.always
            made = {**there, **await self._make(rendered.gang, asked, fit if bound else None)}
            await self._check_made(wanted, made, new)
            ours: list[backends.TaskLaunch] = []
            theirs: list[backends.TaskLaunch] = []
            for one in wanted:
                (theirs if podstates.is_steered(made[one.key].metadata) else ours).append(one)
            await self._all(self._bind(one, made[one.key], still) for one in ours)
            await steering.until_bound(self._api, self._site, self._own, theirs, until, self._monotonic)
        except BaseException as error:
            if isinstance(error, steering.Unbound):
                self._barriers.put(error, rendered.local, wanted)
            self._places.leave(nodes)
            self._nodes_changed = True  # the next plan must know of a node without places
            raise

    async def _rendered(self, new: Sequence[backends.TaskLaunch], *, bound: bool) -> _Rendered:
        """Return the objects of tasks without a pod. Each launch and each plan asks here. `bound` says whether the
        server may create them bound.

        Raises InvalidInput, and Unavailable for claims that are not there.
        """
        claiming = self._devices.any(new)
        if claiming:
            await self._devices.require()
        local = await self._claims.local(new)
        extending = any(rendering.extended(one, self._site) for one in new)
        steered = bool(local) or claiming or extending or self._site.mode is Mode.STEER
        bound = bound and not steered
        return _Rendered(rendering.gang(new, self._site, steered=steered, bound=bound), local, steered, bound)

    def _check_fit(
        self, tasks: Sequence[backends.TaskLaunch], wanted: dict[attempts.TaskKey, holdings.Resources]
    ) -> None:
        """Reserve the amounts. Raise Unavailable where a node is gone, or was closed or filled up since the plan."""
        places = {one.key: one.holding.node for one in tasks}
        closures.check((one for one in tasks if not self._own.is_bound(one.key)), self._state, self._site)
        asked: dict[str, holdings.Resources] = {}
        for key, place in places.items():
            asked[place] = asked.get(place, holdings.Resources()) + wanted[key]
        for name, amount in asked.items():
            node = self._state.node(name)
            if node is None or not node.ready:
                why = "is not there" if node is None else f"cannot be used: {node.reason}"
                raise errors.Unavailable(f"node {name} {why}", hint="It is tried again on the nodes that there are.")
            free = node.usable - self._own.taken(name, wanted)
            if not amount.fits(free):
                raise errors.Unavailable(
                    f"node {name} has filled up: {_text(amount)} are needed, {_text(free)} are free",
                    hint="It is tried again.",
                )
        for key, place in places.items():
            if not self._own.is_bound(key):
                self._own.reserve(key, place, wanted[key])

    async def _make(
        self, gang: rendering.Gang, still: backends.Still, fit: Callable[[], None] | None
    ) -> dict[attempts.TaskKey, objects.Pod]:
        """Create the Secrets, then the pods, or find those that an earlier try has made.

        The Secrets come first, so that a pod never lacks its own, wherever the server dies. `still` is asked before
        each pod: one that another scheduler binds may start at once. So may one that is created bound: `fit` checks
        once more that it fits.
        """
        await self._all(self._create("secrets", manifest, objects.Bare) for manifest in gang.secrets)
        if fit is not None:
            fit()
        made = await self._all(self._create_pod(manifest, still) for manifest in gang.pods.values())
        return dict(zip(gang.pods, made, strict=True))

    async def _create_pod(self, manifest: rendering.Manifest, still: backends.Still) -> objects.Pod:
        """Create the pod, which is observed from now on, whatever becomes of the others."""
        backends.check(still)
        try:
            made = await self._create_to_the_end(manifest)
        except errors.Unavailable as error:
            if "nodeName" not in manifest["spec"] or not boundpods.is_refusal(error):
                raise
            backends.check(still)
            made = await self._create("pods", rendering.unbound(manifest), objects.Pod)
            self._bound.refused(error.message)
        self._own.put(made)
        return made

    async def _create_to_the_end(self, manifest: rendering.Manifest) -> objects.Pod:
        """Create a pod. One that is created bound takes its node at once: a cancellation waits until it is observed."""
        creating = asyncio.ensure_future(self._create("pods", manifest, objects.Pod))
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            if "nodeName" in manifest["spec"]:
                await asyncio.wait([creating], timeout=boundpods.ANSWER_S)
            creating.cancel()
            [found] = await asyncio.gather(creating, return_exceptions=True)
            if isinstance(found, objects.Pod):
                self._own.put(found)
            raise

    async def _create(self, plural: str, manifest: rendering.Manifest, kind: type[T]) -> T:
        """Create an object.

        Raise Unavailable with the server's reason: a quota, a webhook, a name that belongs to another.
        """
        name = manifest["metadata"]["name"]
        try:
            return await self._api.create(self._path(plural), manifest, kind)
        except errors.Conflict as error:
            if answers.reason(error) != answers.ALREADY_EXISTS:
                raise _refused(name, error) from error
        except _REFUSALS as error:
            raise _refused(name, error) from error
        there = await self._api.get(f"{self._path(plural)}/{name}", objects.Bare)
        if not labels.is_same(there.metadata, manifest["metadata"]["labels"]):
            raise errors.Unavailable(f"the name {name} belongs to another object", hint="Delete or rename it.")
        return await self._api.get(f"{self._path(plural)}/{name}", kind)

    async def _check_made(
        self,
        tasks: Sequence[backends.TaskLaunch],
        made: dict[attempts.TaskKey, objects.Pod],
        new: Sequence[backends.TaskLaunch],
    ) -> None:
        """Check the pods as the API server returned them. A pod that was created bound, and must not be, is removed at
        once.
        """
        bound = {one.key: made[one.key] for one in new if made[one.key].spec.node_name}
        try:
            self._check_returned([one for one in tasks if one.key in bound or not made[one.key].spec.node_name], made)
        except errors.Unavailable:
            with contextlib.suppress(errors.OarlockError):  # the guardian removes it, too
                await self._all(self._delete(pod, KILL_GRACE_S) for pod in bound.values())
            raise

    def _check_returned(self, tasks: Sequence[backends.TaskLaunch], made: dict[attempts.TaskKey, objects.Pod]) -> None:
        """Check the pods as the API server returned them: webhooks and limit ranges change requests, and pods of others
        may have come since the first check.
        """
        needs = {one.key: clusterstate.needs(made[one.key].spec, self._site.gpu_resource) for one in tasks}
        for one in tasks:
            pod = made[one.key]
            wanted = self._site.scheduler if podstates.is_steered(pod.metadata) else rendering.SCHEDULER
            self._bound.returned(
                one, unchanged=pod.spec.scheduler_name == wanted and needs[one.key] == one.holding.amount
            )
            if pod.spec.scheduler_name != wanted:
                raise errors.Unavailable(
                    f"a webhook gave the pod of {one.key} to the scheduler {pod.spec.scheduler_name}",
                    hint="Exclude the namespace from the webhook.",
                )
            self._devices.check_returned(one, pod)
        changed = {one.key for one in tasks if needs[one.key] != one.holding.amount}
        if changed:
            _log.info("kubernetes.requests_changed", pods=len(changed))
        self._check_fit(tasks, needs)

    async def _bind(self, one: backends.TaskLaunch, pod: objects.Pod, still: backends.Still) -> None:
        """Bind the pod, unless it is bound there. Raises Unavailable."""
        node, name = one.holding.node, pod.metadata.name
        if pod.spec.node_name == node:
            return
        backends.check(still)  # a pod that is not bound takes nothing
        try:
            await self._api.bind(self._site.namespace, name, pod.metadata.uid, node)
        except (errors.Conflict, errors.NotFound, errors.Forbidden, errors.InvalidInput) as error:
            if not await self._is_bound(pod, node):
                raise _refused(name, error) from error

    async def _is_bound(self, pod: objects.Pod, node: str) -> bool:
        """Return whether the pod is on that node: the answer to an earlier request may have been lost."""
        try:
            now = await self._api.get(f"{self._path('pods')}/{pod.metadata.name}", objects.Pod)
        except errors.NotFound:
            return False
        return now.metadata.uid == pod.metadata.uid and now.spec.node_name == node

    # Pods

    def _path(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self._site.namespace}/{plural}"

    def _observed(self, key: attempts.TaskKey, pod: objects.Pod) -> observations.Observed:
        """Return the same object while nothing has changed: most pods are as they were at the last look."""
        trouble, pull = self._state.trouble(pod.spec.node_name), self._own.pull(key)
        known = self._seen.get(key)
        if known is None or known[0] is not pod or known[1:3] != (trouble, pull):
            seen = self._own.by_our_clock(pod, podstates.observed(key, pod, trouble=trouble, pull=pull))
            known = self._seen[key] = pod, trouble, pull, seen
            self._ask_why(pod)
        return known[3]

    def _ask_why(self, pod: objects.Pod) -> None:
        """Ask for the Events of a pod that others delete, where the pod itself does not say why."""
        meta = pod.metadata
        if meta.deletion_timestamp and meta.uid not in self._killed and not podstates.is_disrupted(pod):
            self._preemptions.ask(meta.uid)

    async def _delete(self, pod: objects.Pod, grace_s: int) -> None:
        self._killed.add(pod.metadata.uid)
        await self._api.delete(f"{self._path('pods')}/{pod.metadata.name}", uid=pod.metadata.uid, grace_s=grace_s)

    def _cluster_changed(self) -> None:
        self._nodes_changed = True
        self._changed.set()

    def _missing(self, key: attempts.TaskKey, last: objects.Pod) -> None:
        self._seen.pop(key, None)
        self._places.leave([key])
        self._ask_why(last)
        self._killed.discard(last.metadata.uid)
        if last.metadata.uid not in self._discarded:
            self._gone[key] = last.metadata.uid, self._own.by_our_clock(last, podstates.vanished(key, last))

    async def _synced(self) -> None:
        """Wait for the first look at the cluster: before it nothing may be called gone. Raises Unavailable."""
        if self._own.synced.is_set() and self._state.is_synced:
            return
        try:
            async with asyncio.timeout(SYNC_S):
                await self._state.synced()
                await self._own.synced.wait()
        except TimeoutError as error:
            raise self._unread("read yet") from error

    def _unread(self, what: str) -> errors.Unavailable:
        return errors.Unavailable(
            f"the cluster at {self._api.access.server} could not be {what}", hint="It is tried again."
        )

    async def _all(self, work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Do all of it, some at a time; raise the first error once all of them have ended."""
        listed = list(work)
        if len(listed) == 1:
            return [await listed[0]]
        limit = asyncio.Semaphore(AT_ONCE)

        async def limited(one: Coroutine[Any, Any, T]) -> T:
            async with limit:
                return await one

        try:
            done = await asyncio.gather(*(limited(one) for one in listed), return_exceptions=True)
        finally:
            for one in listed:
                one.close()  # those that were canceled before their first step
        results: list[T] = []
        for result in done:
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results


class _Rendered(NamedTuple):
    """The objects of a launch. `local` are the claims that may not be on every node; `steered` says that the stock
    scheduler binds the pods, and `bound` that they are created bound.
    """

    gang: rendering.Gang
    local: Sequence[str]
    steered: bool
    bound: bool


def _refused(name: str, error: errors.OarlockError) -> errors.Unavailable:
    return errors.Unavailable(f"{name} was refused by the cluster: {error.message}", hint=error.hint)


def _text(amount: holdings.Resources) -> str:
    parts = [f"{amount.cpus_milli / 1000:g} CPUs", f"{amount.memory_bytes >> 20} MiB"]
    return ", ".join([*parts, f"{amount.gpus} GPUs"] if amount.gpus else parts)
