"""TensorBoards of jobs as pods: made, listed, reached and removed by the controller and the API.

A pod that has ended by a decision of the cluster (an eviction) counts as none, and is made again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from oarlock.backends import backends
from oarlock.backends.kubernetes.apiserver import answers, client, objects
from oarlock.backends.kubernetes.pods import boards, commands, labels, podstates
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import errors, jobs, resources
from oarlock.spec.protocol import tasktokens

_ENDED = frozenset({"Succeeded", "Failed"})

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

    async def there(self) -> dict[str, str]:
        selector = labels.selector({labels.TENSORBOARD: self._site.installation})
        found = await self._api.list(self._path("pods"), objects.Pod, {"labelSelector": selector})
        return {
            pod.metadata.labels.get(labels.JOB, ""): _why_not(pod) for pod in found if pod.status.phase not in _ENDED
        }

    async def make(self, job: jobs.Job) -> None:
        owner = await self._owner(job)
        references = labels.references(owner) if owner is not None else []
        secret = boards.secret(
            job.id, self._site, self._server, tasktokens.of_tensorboard(self._secret, job.id), references
        )
        await self._create("secrets", secret)
        if not await self._create("pods", boards.pod(job.id, job.name, self._site, references)):
            await self._replace(job.id)

    async def remove(self, job: str) -> None:
        await self._api.delete(f"{self._path('pods')}/{boards.name(job)}")
        chosen = labels.selector(labels.of_tensorboard(self._site.installation, job))
        await self._api.delete_all(self._path("secrets"), {"labelSelector": chosen})

    async def connect(self, job: str) -> backends.ExecProcess:
        path = f"{self._path('pods')}/{boards.name(job)}"
        try:
            pod = await self._api.get(path, objects.Pod)
        except errors.NotFound as error:
            raise errors.NotFound("The job has no TensorBoard.", hint="See `oarlock show`: does it run?") from error
        if why := _why_not(pod):
            raise errors.Conflict(f"The job's TensorBoard does not run yet: {why}", hint="Try again in a moment.")
        return await commands.start(self._api, path, boards.FEED, boards.BRIDGE, tty=False, rows=24, columns=80)

    async def _create(self, plural: str, manifest: dict[str, object]) -> bool:
        """Make the object; return False where its name is taken."""
        try:
            await self._api.create(self._path(plural), manifest, objects.Bare)
        except errors.Conflict as error:
            if answers.reason(error) != answers.ALREADY_EXISTS:
                raise
            return False
        return True

    async def _replace(self, job: str) -> None:
        """Remove a pod that has ended: the next look makes another one."""
        path = f"{self._path('pods')}/{boards.name(job)}"
        pod = await self._api.get(path, objects.Pod)
        if pod.status.phase in _ENDED and pod.metadata.labels.get(labels.TENSORBOARD) == self._site.installation:
            await self._api.delete(path, uid=pod.metadata.uid, grace_s=0)

    def _path(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self._site.namespace}/{plural}"


def _why_not(pod: objects.Pod) -> str:
    """Return why the TensorBoard of the pod does not run yet; empty where it runs."""
    if pod.metadata.deletion_timestamp is not None:
        return "it is being removed"
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
