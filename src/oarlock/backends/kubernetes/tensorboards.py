"""TensorBoards of jobs as pods: made, listed, reached and removed by the controller and the API.

    pod ──> Secret with the address of the server and the token, owned by the pod

The cluster removes the Secret with its pod, whatever has removed the pod. The pod waits until its Secret is there. A
pod that has ended by a decision of the cluster (an eviction), or that was made with another address or token than one
has now, is not good: it is removed, and the next look makes another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from oarlock.backends import backends
from oarlock.backends.kubernetes.apiserver import answers, client, objects
from oarlock.backends.kubernetes.pods import boards, commands, labels, podstates, rendering
from oarlock.backends.kubernetes.site import Site
from oarlock.backends.tensorboards import Board
from oarlock.spec import errors, jobs, resources
from oarlock.spec.protocol import tasktokens

_ENDED = frozenset({"Succeeded", "Failed"})
HAS_ENDED = "it has ended, and is made again"
PLANNED_UID = "uid-of-pod-planned"
"""Stands for the UID of a pod that is not made yet, and owns its Secret."""

Owner = Callable[[jobs.Job], Awaitable[resources.Resource | None]]


class TensorBoards:
    """`server` is the URL by which pods reach the server. The tokens of TensorBoards are made from its `secret`."""

    def __init__(self, api: client.Client, site: Site, owner: Owner, *, server: str, secret: bytes) -> None:
        self._api = api
        self._site = site
        self._owner = owner
        self._server = server
        self._secret = secret

    @property
    def makes(self) -> bool:
        return boards.IMAGE in self._site.images

    async def there(self) -> list[Board]:
        selector = labels.selector({labels.TENSORBOARD: self._site.installation})
        return [
            self._board(pod)
            for pod in await self._api.list(self._path("pods"), objects.Pod, {"labelSelector": selector})
        ]

    async def of(self, job: jobs.Job) -> Board | None:
        try:
            pod = await self._api.get(self._pod_path(job), objects.Pod)
        except errors.NotFound:
            return None
        return self._board(pod) if self._is_ours(pod) else None

    async def make(self, job: jobs.Job, still: backends.Still) -> str:
        owner = await self._owner(job)
        references = labels.references(owner) if owner is not None else []
        login = self._login(job.id, _attempt(job))
        backends.check(still)
        made = await self._created(
            "pods", boards.pod(job.id, _attempt(job), job.name, self._site, login, references), objects.Pod
        )
        pod = made if made is not None else await self._api.get(self._pod_path(job), objects.Pod)
        if not self._is_ours(pod):
            raise errors.Unavailable(
                f"the name {pod.metadata.name} belongs to another pod", hint="Delete or rename the pod."
            )
        if not self._board(pod).good:
            return ""
        await self._give(job, login, pod.metadata, still)
        return pod.metadata.uid

    def planned(self, job: jobs.Job, owner: resources.Resource | None) -> list[rendering.Manifest]:
        """Return what `make` would make for a job that is only planned, with a token that is not valid."""
        if not job.spec.tensorboard or not self.makes:
            return []
        token = tasktokens.of_tensorboard(bytes(tasktokens.SECRET_BYTES), job.id, 1)
        login = boards.login(self._site, self._server, token)
        references = labels.references(owner) if owner is not None else []
        pod = boards.pod(job.id, 1, job.name, self._site, login, references)
        meta = objects.Meta(name=pod["metadata"]["name"], uid=PLANNED_UID)
        return [pod, boards.secret(job.id, 1, self._site, login, meta)]

    async def remove(self, board: Board, still: backends.Still) -> None:
        backends.check(still)
        await self._api.delete(
            f"{self._path('pods')}/{board.name}", uid=board.uid, grace_s=0 if board.reason == HAS_ENDED else None
        )

    async def connect(self, job: jobs.Job) -> backends.ExecProcess:
        board = await self.of(job)
        if board is None:
            raise errors.NotFound("The job has no TensorBoard.", hint="See `oarlock show`: does it run?")
        if board.reason:
            raise errors.Conflict(
                f"The job's TensorBoard does not run yet: {board.reason}", hint="Try again in a moment."
            )
        return await commands.start(
            self._api, self._pod_path(job), boards.FEED, boards.BRIDGE, tty=False, rows=24, columns=80
        )

    def _board(self, pod: objects.Pod) -> Board:
        meta = pod.metadata
        job, attempt = meta.labels.get(labels.JOB, ""), meta.labels.get(labels.ATTEMPT, "")
        number = int(attempt) if attempt.isdecimal() else 0  # 0: of an older server
        going = pod.status.phase in _ENDED or meta.deletion_timestamp is not None
        known = meta.annotations.get(boards.CONTENT) == boards.digest(self._login(job, number))
        return Board(
            job=job, attempt=number, uid=meta.uid, name=meta.name, reason=_why_not(pod), good=known and not going
        )

    def _login(self, job: str, attempt: int) -> boards.Login:
        return boards.login(self._site, self._server, tasktokens.of_tensorboard(self._secret, job, attempt))

    def _is_ours(self, pod: objects.Pod) -> bool:
        return pod.metadata.labels.get(labels.TENSORBOARD) == self._site.installation

    async def _give(self, job: jobs.Job, login: boards.Login, pod: objects.Meta, still: backends.Still) -> None:
        """Make the Secret of the pod, in place of one that a pod of before has left."""
        manifest = boards.secret(job.id, _attempt(job), self._site, login, pod)
        backends.check(still)
        if await self._created("secrets", manifest, objects.Bare) is not None:
            return
        name = boards.name(job.id, _attempt(job))
        found = (await self._api.get(f"{self._path('secrets')}/{name}", objects.Bare)).metadata
        if [one.uid for one in found.owner_references] == [pod.uid]:
            return
        backends.check(still)
        chosen = labels.selector(labels.of_tensorboard(self._site.installation, job.id, _attempt(job)))
        await self._api.delete_all(self._path("secrets"), {"labelSelector": chosen})
        await self._api.create(self._path("secrets"), manifest, objects.Bare)

    async def _created(self, plural: str, manifest: dict[str, object], kind: type[client.T]) -> client.T | None:
        """Make the object; return None where its name is taken."""
        try:
            return await self._api.create(self._path(plural), manifest, kind)
        except errors.Conflict as error:
            if answers.reason(error) != answers.ALREADY_EXISTS:
                raise
            return None

    def _pod_path(self, job: jobs.Job) -> str:
        return f"{self._path('pods')}/{boards.name(job.id, _attempt(job))}"

    def _path(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self._site.namespace}/{plural}"


def _attempt(job: jobs.Job) -> int:
    """Return the number of the living attempt. Raises Conflict."""
    if job.live is None:
        raise errors.Conflict(f"{job.name} does not run: {job.phase}.", hint="Its TensorBoard comes with its attempt.")
    return job.live.number


def _why_not(pod: objects.Pod) -> str:
    """Return why the TensorBoard of the pod does not run yet; empty where it runs."""
    if pod.metadata.deletion_timestamp is not None:
        return "it is being removed"
    if pod.status.phase in _ENDED:
        return HAS_ENDED
    states = {one.name: one.state for one in pod.status.container_statuses}
    if all(name in states and states[name].running is not None for name in (boards.SHOW, boards.FEED)):
        return ""
    return podstates.pull_failure(pod) or podstates.unscheduled(pod) or _waiting(pod) or "it starts"


def _waiting(pod: objects.Pod) -> str:
    for status in pod.status.container_statuses:
        waiting = status.state.waiting
        if waiting is not None and waiting.message:
            return waiting.message[: podstates.MAX_WORDS]
    return ""
