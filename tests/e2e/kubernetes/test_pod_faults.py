"""Faults of the cluster and of the server while gangs run in pods: a real server process, API server and agents.

Two nodes of 4 CPUs and 4 GPUs, and gangs of two tasks that ask for 3 of each: one gang fits at a time, so that a device
taken twice would show as a node that gives more than it has. After each fault all jobs complete, and nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from tests.backends.kubernetes.testcluster import apiserver, cluster, proxy
from tests.e2e.kubernetes import parts, pods

from oarlock.backends.kubernetes import amounts
from oarlock.backends.kubernetes.apiserver import objects
from oarlock.backends.kubernetes.pods import labels, podstates
from oarlock.controllers import leadership
from oarlock.spec import attempts, bodies, holdings
from oarlock.spec.reconciling import observations

pytestmark = apiserver.needed

FAILPOINT = "kubernetes.before_write"
JOB = [
    "run",
    "--detach",
    "--workers",
    "2",
    "--cpus",
    "3",
    "--gpus",
    "3",
    "--grace",
    "1s",
    "--framework",
    "plain",
    "--image",
    "registry.example/any:1",
]
GOING = "its pod is being deleted, and its node has not confirmed yet that its processes have ended"
TERMINATING = "because it is being terminated"
NO_NAMESPACE = "cannot create resource"
FIRST_STAYS = 'test "$OARLOCK_ATTEMPT" != 1 || exec sleep 600'
NODE = holdings.Resources(cpus_milli=4000, gpus=4)
ETCD_AWAY_S = 20.0
SETTLED_S = 60.0
"""After a fault everything is settled within this time."""


class FaultShell(pods.PodShell):
    """A user on a cluster of its own, whose server talks to the API server through a proxy."""

    def __init__(self, folder: Path, api_server: apiserver.ApiServer) -> None:
        super().__init__(folder, api_server)
        self.proxy = proxy.Proxy(api_server.url)
        self.doubled: set[str] = set()  # what was seen that must never be
        self.seen: dict[str, parts.Life] = {}  # the pods by UID
        self.parts = parts.Parts(size=2)
        self._counts = folder / "writes-count"
        self._looking: list[asyncio.Task[None]] = []

    async def _open(self) -> None:
        await super()._open()
        await self.proxy.open()
        config = Path(self.env["KUBECONFIG"])
        mine = self.home.parent / "kubeconfig"
        text = config.read_text().replace(self.api_server.url, self.proxy.url)
        mine.write_text("\n".join(line for line in text.splitlines() if "certificate-authority" not in line))
        self.env["KUBECONFIG"] = str(mine)
        self._looking = [asyncio.create_task(self._look()), asyncio.create_task(self.parts.count(self._ask))]

    def outlives_a_kill(self, name: str, *, before: int) -> None:
        """Kill the server before a write of the job's launch. The next one completes the gang."""
        self.do("down")
        self.start_server(self.at_write(before, "kill"))
        pid = self.server_pid()
        self.count_writes()
        self.begin(name)
        self.until(lambda: self.is_dead(pid), "the server is dead")
        self.start_server()
        self.is_whole(name)
        assert self.starts(name) == 2, "each task was started once"

    def at_write(self, number: int, action: str) -> str:
        """Return the failpoint before this write behind the next `count_writes`: a server that starts writes, too."""
        self._counts.unlink(missing_ok=True)
        return f"{FAILPOINT}:{number}:{action}:{self._counts}"

    def count_writes(self) -> None:
        self._counts.touch()

    async def add_nodes(self) -> None:
        for name in ("n1", "n2"):
            await self.add_node(name)

    async def add_node(self, name: str) -> None:
        await self.cluster.add(name, cpu=str(NODE.cpus_milli // 1000), gpus=NODE.gpus)

    async def _close(self) -> None:
        for one in self._looking:
            one.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)
        await self.proxy.close()
        await super()._close()

    async def _look(self) -> None:
        """Look all the time for nodes that are taken twice, two lives of one job, and gangs that are bound in part."""
        while True:
            taken: dict[str, holdings.Resources] = {}
            lives: dict[str, set[int]] = {}
            there = self.cluster._watch.items
            for uid, life in list(self.seen.items()):
                if uid not in there and not life.over:
                    self.seen[uid] = msgspec.structs.replace(life, over=True)
            for pod in list(there.values()):
                key = podstates.key(pod)
                if key is not None:
                    self.seen[pod.metadata.uid] = _life(key, pod)
                if key is None or not pod.spec.node_name or podstates.state_of(pod) is observations.State.GONE:
                    continue
                taken[pod.spec.node_name] = taken.get(pod.spec.node_name, holdings.Resources()) + _asked(pod)
                lives.setdefault(key.job, set()).add(key.attempt)
            self.doubled |= {text for node, amount in taken.items() for text in _too_much(node, amount)}
            self.doubled |= {f"{job} has the lives {found}" for job, found in lives.items() if len(found) > 1}
            self.parts.look(list(self.seen.values()))
            await asyncio.sleep(parts.LOOK_S)

    async def loses_namespace(self) -> None:
        """The namespace goes, with all that is left in it: the rights of the server, and the claim of checkpoints."""
        await self.cluster.empty_namespace("secrets", "pods", "persistentvolumeclaims", *cluster.RIGHTS)
        await self.cluster.until(lambda: not self.cluster._watch.items, "the pods are gone")
        await self.cluster.end_namespace()

    def begin(self, name: str, command: str = "sleep 0.2") -> None:
        self.do(*JOB, "--name", name, "--", "sh", "-c", command)

    def is_whole(self, *names: str) -> None:
        """The fault is over. Within 60 s all jobs complete, and nothing of them is left. Nothing was ever taken twice,
        and no gang was bound in part for longer than 30 s. A slow machine has more seconds (`clocks`).
        """
        with self.settles():
            for name in names:
                job = self.wait_phase(name, "COMPLETED", "FAILED")
                assert job["phase"] == "COMPLETED", job
            self.until(lambda: not self.pods() and not self.secrets(), "pods and Secrets are gone")
        assert not self.doubled
        assert not names or any(life.bound for life in self.seen.values()), "bindings were seen"
        assert not self.parts.late(), "gangs were bound in part for too long"
        self.seen.clear()
        assert self._looking
        assert not any(one.done() for one in self._looking), "it has looked until now"

    def settles(self) -> contextlib.AbstractContextManager[None]:
        """A fault is over, or one that stays has come. Fail where the body, which waits for its end, takes too long."""
        return self.within(SETTLED_S, "settling after the fault")

    def lives(self, name: str) -> tuple[int, int]:
        """Return the numbers of the job's attempts, and of the restarts that it has spent. A test that fails shows why
        each attempt ended.
        """
        job = self.job(name)
        for attempt in job["attempts"]:
            sys.stdout.write(f"attempt {attempt['number']}: {attempt['verdict']}\n")
        return len(job["attempts"]), job["restarts"]

    def told(self, *arguments: str) -> str:
        """Return the output of the command as one line."""
        return " ".join(self.do(*arguments).stdout.split())

    def why(self, name: str) -> str:
        """Return the lines of `oarlock why`."""
        with self.client() as client:
            return "\n".join(client.why(name).lines)

    def nodes(self) -> dict[str, bodies.NodeState]:
        with self.client() as client:
            return {one.node.name: one for one in client.nodes()}

    def waits(self, name: str) -> bool:
        """Return whether the job is queued, with a reason that a plan has found."""
        job = self.job(name)
        return job["phase"] == "QUEUED" and job["refusal"] is not None

    def start_server(self, failpoint: str = "") -> None:
        if failpoint:
            self.env["OARLOCK_FAILPOINT"] = failpoint
        self.do("up", "--backend", "kubernetes", "--detach", code=None if failpoint else 0)
        self.env.pop("OARLOCK_FAILPOINT", None)

    def kill_server(self) -> None:
        pid = self.server_pid()
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: self.is_dead(pid), "the server is dead")

    def is_dead(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return True


F = TypeVar("F", bound=FaultShell)


def _life(key: attempts.TaskKey, pod: objects.Pod) -> parts.Life:
    over = pod.metadata.deletion_timestamp is not None or podstates.state_of(pod) is observations.State.GONE
    return parts.Life(key, bool(pod.spec.node_name), over)


def _asked(pod: objects.Pod) -> holdings.Resources:
    asked = (amounts.resources(one.resources.requests, cluster.GPU, up=True) for one in pod.spec.containers)
    return sum(asked, holdings.Resources())


def _too_much(node: str, amount: holdings.Resources) -> Iterator[str]:
    if amount.cpus_milli > NODE.cpus_milli:
        yield f"{node} gives {amount.cpus_milli} thousandths of its {NODE.cpus_milli // 1000} CPUs"
    if amount.gpus > NODE.gpus:
        yield f"{node} gives {amount.gpus} of its {NODE.gpus} GPUs"


@contextlib.contextmanager
def opened(
    folder: Path, kind: type[F], prepare: Callable[[apiserver.ApiServer], None] = lambda server: None
) -> Iterator[F]:
    """Open a shell of this kind over an API server of its own; `prepare` is done to it first."""
    with apiserver.running(folder / "api") as server:
        prepare(server)
        one = kind(folder / "user", server)
        try:
            one.open()
            yield one
        finally:
            one.close()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pods.Clusters[FaultShell]]:
    with pods.shared(lambda: opened(tmp_path_factory.mktemp("faults"), FaultShell)) as made:
        yield made


@pytest.fixture
def shell(clusters: pods.Clusters[FaultShell], request: pytest.FixtureRequest) -> Iterator[FaultShell]:
    with clusters.serving(request.node) as one:
        yield one
        one.proxy.fate, one.proxy.before, one.proxy.after = proxy.none, proxy.at_once, proxy.at_once
        one.proxy.met.clear()


@pytest.mark.parametrize("write", range(1, 6))
def test_the_server_is_killed_before_each_write_of_a_launch(shell: FaultShell, write: int) -> None:
    """A Secret, two pods, two bindings. The next server completes the same gang: no pod is made twice."""
    name = f"killed-{write}"
    shell.outlives_a_kill(name, before=write)


def test_the_api_server_restarts(shell: FaultShell) -> None:
    for number in range(3):
        shell.begin(f"restart-{number}")
    shell.wait_phase("restart-0", "PROCESSING", "STORING", "COMPLETED")
    shell.api_server.stop("kube-apiserver", signal.SIGKILL)
    shell.begin("restart-3")
    shell.api_server.start_api()
    shell.api_server.until_ready()
    shell.is_whole(*(f"restart-{number}" for number in range(4)))


def test_etcd_stands_still_for_twenty_seconds(shell: FaultShell) -> None:
    for number in range(3):
        shell.begin(f"etcd-{number}")
    shell.wait_phase("etcd-0", "PROCESSING", "STORING", "COMPLETED")
    shell.api_server.pause("etcd")
    try:
        time.sleep(ETCD_AWAY_S)
    finally:
        shell.api_server.resume("etcd")
    shell.is_whole(*(f"etcd-{number}" for number in range(3)))


def test_calls_fail_and_answers_are_lost(shell: FaultShell) -> None:
    """A tenth of the calls is answered by 429 or 500, and another tenth, or its answer, is lost. Watches break, too."""
    shell.proxy.fate = proxy.unreliable(random.Random(9))
    shell.do("down")
    shell.start_server()
    for number in range(4):
        shell.begin(f"flaky-{number}")
    shell.is_whole(*(f"flaky-{number}" for number in range(4)))
    assert all(shell.proxy.met[one] for one in (*proxy.FAULTS, "cut"))


def test_a_quota_that_is_too_small_holds_the_gang_back_whole(shell: FaultShell) -> None:
    """The job waits with the reason, nothing of it is bound, and it runs once there is enough."""
    shell.on_cluster(shell.cluster.quota("small", **{"requests.cpu": "4"}))
    try:
        shell.begin("quota")
        shell.until(lambda: "exceeded quota: small" in shell.do("show", "quota").stdout, "the quota is named")
        assert not any(pod.spec.node_name for pod in shell.pods()), "no part of the gang is bound"
    finally:
        shell.on_cluster(shell.cluster.api.delete(f"{shell.cluster.path('resourcequotas')}/small"))
    shell.is_whole("quota")


def test_a_binding_that_is_refused_removes_the_gang_whole(shell: FaultShell) -> None:
    """The second one of each try, until the API server takes them all: a policy may look at bindings alone."""
    numbers = itertools.count(1)

    def fate(method: str, path: str, watch: bool) -> str:
        return "403" if method == "POST" and path.endswith("/binding") and next(numbers) % 2 == 0 else ""

    shell.proxy.fate = fate
    shell.begin("refused")
    job = shell.job("refused")["id"]
    words = "the launch failed: {}-1-worker-{}-1 was refused by the cluster: a pretended 403"
    named = [words.format(job, index) for index in range(2)]
    shell.until(lambda: len(shell.job("refused")["attempts"]) > 1, "the launch is given up")
    said = shell.job("refused")["attempts"][0]["verdict"]["message"]
    assert said in named
    shell.until(lambda: said in shell.told("show", "refused"), "it is named")
    first = {labels.pod_name(attempts.TaskKey(job, 1, "worker", index, 1)) for index in range(2)}
    shell.until(lambda: not first & set(shell.pod_names()), "both pods are removed")
    shell.proxy.fate = proxy.none
    shell.is_whole("refused")
    assert shell.job("refused")["restarts"] == 0


def test_a_gang_that_stays_bound_in_part_over_a_takeover_is_removed_in_time(shell: FaultShell) -> None:
    """The second binding gets no answer, whichever server asks for it. The next server has the rest of the time."""
    goes_on = asyncio.Event()

    async def before(method: str, path: str) -> None:
        if method == "POST" and path.endswith("-1-worker-1-1/binding"):
            await goes_on.wait()

    shell.proxy.before = before
    shell.begin("part")
    shell.until(lambda: any(pod.spec.node_name for pod in shell.pods()), "one pod is bound")
    shell.kill_server()
    shell.start_server()
    shell.until(lambda: len(shell.job("part")["attempts"]) > 1, "the gang was given up")
    shell._loop.call_soon_threadsafe(goes_on.set)
    shell.is_whole("part")
    assert shell.job("part")["restarts"] == 0


def test_a_webhook_that_does_not_answer_is_named(shell: FaultShell) -> None:
    """The API server gives up on it after some seconds, and so does each further try of the launch until its bound."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        hook = {
            "name": "slow.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:{silent.getsockname()[1]}"},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 10,
        }
        shell.on_cluster(shell._api.create(path, {"metadata": {"name": "slow"}, "webhooks": [hook]}, objects.Bare))
        try:
            shell.begin("hooked")
            words = 'did not answer in time: Internal error occurred: failed calling webhook "slow.example.com"'
            shell.until(lambda: words in shell.told("show", "hooked"), "the webhook is named")
        finally:
            shell.on_cluster(shell._api.delete(f"{path}/slow"))
    shell.is_whole("hooked")


def test_watches_are_dropped_and_told_that_they_are_too_old(shell: FaultShell) -> None:
    """No other request fails. The pods begin, end and go meanwhile: nothing of it is missed."""
    fates = itertools.cycle(["cut", "410", "old"])

    def fate(method: str, path: str, watch: bool) -> str:
        return next(fates) if watch else ""

    shell.proxy.fate = fate
    shell.do("down")
    shell.start_server()
    for number in range(4):
        shell.begin(f"watched-{number}")
    shell.is_whole(*(f"watched-{number}" for number in range(4)))
    met = shell.proxy.met
    shell.until(lambda: all(met[one] for one in ("cut", "410", "old")), "each of the faults")


def test_a_pod_is_deleted_by_hand(shell: FaultShell) -> None:
    shell.begin("deleted", FIRST_STAYS)
    shell.wait_phase("deleted", "PROCESSING")
    shell.delete_pod("deleted", "worker", 1)
    shell.is_whole("deleted")
    assert shell.lives("deleted") == (2, 0)


@pytest.mark.parametrize("by", [cluster.Cluster.preempt, cluster.Cluster.preempt_silently], ids=["told", "Event"])
def test_another_scheduler_preempts_a_pod(shell: FaultShell, by: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Its agent knows only of a SIGTERM. The record names the scheduler, and the job spends no restart. Before 1.26 the
    pod itself does not say so.
    """
    shell.begin("preempted", FIRST_STAYS)
    shell.wait_phase("preempted", "PROCESSING")
    uid = shell.uid("preempted", "worker", 1)
    (pod,) = (pod for pod in shell.pods() if pod.metadata.uid == uid)
    (node,) = (name for name in ("n1", "n2") if shell.cluster.node(name) == pod.spec.node_name)
    written, told = asyncio.Event(), threading.Event()

    async def before(method: str, path: str) -> None:
        if (method, path) == ("GET", shell.cluster.path("events")):
            await written.wait()

    async def after(method: str, path: str) -> None:
        if (method, path) == ("GET", shell.cluster.path("events")):
            told.set()

    async def preempt() -> None:
        shell.cluster.hang(node)  # the pod lives in its grace until the server knows why it goes
        await by(shell.cluster, pod, "kube-system/dns needs its place")
        written.set()

    shell.proxy.before, shell.proxy.after = before, after
    try:
        shell.on_cluster(preempt())
        assert by is cluster.Cluster.preempt or told.wait(240), "the Events are asked for"
    finally:
        shell._loop.call_soon_threadsafe(shell.cluster.hang, node, False)
    shell.is_whole("preempted")
    assert shell.lives("preempted") == (2, 0)
    said = "preempted by another scheduler: kube-system/dns needs its place"
    assert said in shell.job("preempted")["attempts"][0]["verdict"]["message"]
    assert said in " ".join(shell.do("show", "preempted").stdout.split())


def test_a_kubelet_rejects_a_pod(shell: FaultShell) -> None:
    why = "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000"
    shell.cluster.fates["rejected", 1] = cluster.Play(reason="OutOfcpu", message=why)
    shell.begin("rejected")
    shell.is_whole("rejected")
    assert shell.lives("rejected") == (2, 0)
    assert f"its node refused it: {why}" in shell.job("rejected")["attempts"][0]["verdict"]["message"]


def test_a_pod_that_does_not_end_keeps_its_place(shell: FaultShell) -> None:
    """Its node takes tasks, and nothing confirms that its processes have ended."""
    shell.begin("stuck", "exec sleep 600")
    job = shell.wait_phase("stuck", "PROCESSING")
    places = {task["index"]: task["node"] for task in job["attempts"][-1]["tasks"]}
    stays = next(name for name in ("n1", "n2") if shell.cluster.node(name) == places[1])
    shell.cluster.hang(stays)
    try:
        shell.do("cancel", "stuck")
        shell.until(
            lambda: any(pod.metadata.deletion_timestamp and pod.spec.node_name == places[1] for pod in shell.pods()),
            "its pod is being deleted",
        )
        words = f"worker-1: {GOING}. It has been so for"
        shell.until(lambda: words in shell.told("why", "stuck"), "`why` tells what keeps it")
        assert f"{GOING} (since " in shell.told("show", "stuck")
        shell.begin("next")
        shell.until(lambda: shell.waits("next"), "it waits for the place")
        assert shell.nodes()[places[1]].held.cpus_milli == 3000
        assert shell.job("stuck")["phase"] not in {"CANCELED", "COMPLETED", "FAILED"}
        assert shell.starts("next") == 0
        assert shell.waits("next")
    finally:
        shell.cluster.hang(stays, False)
    shell.is_whole("next")
    job = shell.wait_phase("stuck", "CANCELED")
    assert not any(task["obstacle"] for task in job["attempts"][-1]["tasks"])


def test_a_node_is_lost_while_its_task_runs(shell: FaultShell) -> None:
    """The task may still run there. `why` and `show` name the node's trouble since its beginning, until it is over."""
    shell.begin("lonely", "exec sleep 600")
    job = shell.wait_phase("lonely", "PROCESSING")
    places = {task["index"]: task["node"] for task in job["attempts"][-1]["tasks"]}
    lost = next(name for name in ("n1", "n2") if shell.cluster.node(name) == places[1])
    shell.on_cluster(shell.cluster.lose(lost))
    try:
        words = f"worker-1: node lost ({places[1]})"
        shell.until(lambda: f"{words}. It has been so for" in shell.told("why", "lonely"), "`why` names the trouble")
        assert f"node lost ({places[1]}) (since " in shell.told("show", "lonely")
        assert shell.job("lonely")["phase"] == "PROCESSING"
        assert shell.lives("lonely") == (1, 0)
    finally:
        shell.on_cluster(shell.cluster.find(lost))
    with shell.settles():
        shell.until(lambda: words not in shell.told("why", "lonely"), "the trouble is over")
    assert "node lost" not in shell.told("show", "lonely")
    shell.do("cancel", "lonely")
    shell.wait_phase("lonely", "CANCELED")
    shell.is_whole()


@pytest.mark.parametrize("resource", ["cpu", cluster.GPU])
def test_a_foreign_pod_takes_the_place_between_plan_and_binding(shell: FaultShell, resource: str) -> None:
    """It comes while the pods of the gang are made: none of them is bound, and the gang waits as a whole."""
    held, goes_on = threading.Event(), asyncio.Event()

    async def before(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/pods"):
            held.set()
            await goes_on.wait()

    shell.proxy.before = before
    name = f"between-{resource.partition('.')[0]}"
    shell.begin(name)
    assert held.wait(240), "its first pod is about to be made"
    for node in ("n1", "n2"):
        shell.on_cluster(shell.cluster.foreign(f"foreign-{node}", node, **{resource: "2"}))
    nothing = holdings.Resources()
    shell.until(
        lambda: all(one.node.taken != nothing for one in shell.nodes().values()), "the server knows of the pods"
    )
    shell.proxy.before = proxy.at_once
    shell._loop.call_soon_threadsafe(goes_on.set)
    try:
        shell.until(lambda: shell.waits(name) and not shell.pods(), "the gang has been removed")
        mine = shell.job(name)["id"]
        bound = [life for life in shell.seen.values() if life.key.job == mine and life.bound]
        assert not bound, "no part of it was ever bound"
    finally:
        for node in ("n1", "n2"):
            path = f"/api/v1/namespaces/default/pods/{shell.namespace}-foreign-{node}"
            shell.on_cluster(shell.cluster.api.delete(path, grace_s=0))
    shell.is_whole(name)


def test_an_image_that_cannot_be_pulled_ends_the_job(shell: FaultShell) -> None:
    """`why` tells which image, why and since when; the job fails once its start-up time is over."""
    shell.cluster.fates["unpulled", 1] = cluster.Play(pull="manifest unknown")
    shell.do(*JOB, "--name", "unpulled", "--max-restarts", "0", "--start-timeout", "20s", "--", "sleep", "600")
    words = f"worker-1: image {cluster.IMAGE} cannot be pulled: manifest unknown"
    shell.until(lambda: f"{words}. It has been so for" in " ".join(shell.do("why", "unpulled").stdout.split()), words)
    with shell.settles():
        job = shell.wait_phase("unpulled", "FAILED")
    verdict = job["attempts"][-1]["verdict"]
    assert verdict["cause"] == "start_timeout"
    assert f"image {cluster.IMAGE} cannot be pulled: manifest unknown" in verdict["message"]
    shell.is_whole()


def test_a_node_is_deleted(shell: FaultShell) -> None:
    """The gang starts again on the nodes that there are, and spends no restart."""
    shell.begin("moved", FIRST_STAYS)
    shell.wait_phase("moved", "PROCESSING")
    shell.on_cluster(shell.add_node("n3"))
    shell.on_cluster(shell.cluster.remove("n1"))
    shell.is_whole("moved")
    *ended, _ = (attempt["verdict"]["message"] for attempt in shell.job("moved")["attempts"])
    assert len(ended) in {1, 2}, ended
    assert re.fullmatch(r"worker-[01] was lost: it ended without an exit record", ended[0])
    late = f"the launch failed: node {shell.cluster.node('n1')} is not there"  # on a machine that is slow to tell of it
    assert ended[1:] in ([], [late])
    assert shell.job("moved")["restarts"] == 0


def test_the_server_is_stopped_in_a_launch_and_goes_on_later(shell: FaultShell) -> None:
    """Its job was canceled meanwhile: what it made before is removed, and nothing more is bound."""
    shell.do("down")
    shell.start_server(shell.at_write(4, "stop"))
    pid = shell.server_pid()
    shell.count_writes()
    shell.begin("paused", "sleep 600")
    shell.until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
    assert len(shell.pods()) == 2
    assert not any(pod.spec.node_name for pod in shell.pods()), "it was stopped before it bound the first one"
    canceling = http.client.HTTPConnection("127.0.0.1", shell.port)
    token = {"Authorization": f"Bearer {(shell.home / 'token').read_text().strip()}"}
    canceling.request("PUT", "/api/v1/jobs/paused/intent", '{"intent": "cancel"}', token)  # it waits for the server
    time.sleep(leadership.TTL_S + 1)
    os.kill(pid, signal.SIGCONT)
    with shell.settles():
        with contextlib.closing(canceling):
            assert canceling.getresponse().status == 200
        shell.wait_phase("paused", "CANCELED")
    shell.is_whole()


def test_a_namespace_is_deleted_under_a_gang_that_runs(shell: FaultShell) -> None:
    """As by `kubectl delete namespace`. That gang and the next one wait, with the reason, while the namespace goes, and
    without it. They run once the administrator has made it again.
    """
    shell.begin("under", FIRST_STAYS)
    shell.wait_phase("under", "PROCESSING")
    shell.on_cluster(shell.cluster.delete_namespace())
    shell.on_cluster(shell.cluster.empty_namespace("secrets", "pods"))
    shell.begin("late")
    for name in ("under", "late"):
        shell.until(lambda name=name: TERMINATING in shell.why(name), f"{name} waits, with the reason")
    shell.on_cluster(shell.loses_namespace())
    shell.until(lambda: NO_NAMESPACE in shell.why("under"), "what is missing is told")
    assert not shell.pods()
    shell.on_cluster(shell.make_namespace())
    shell.is_whole("under", "late")
    assert shell.job("under")["restarts"] == shell.job("late")["restarts"] == 0


@pytest.mark.parametrize(("number", "end"), [(2, "/pods"), (2, "/binding")])
def test_a_namespace_is_deleted_in_the_middle_of_a_launch(shell: FaultShell, number: int, end: str) -> None:
    """Before this write of the launch. No gang stays bound in part, and the job runs once the namespace is back."""
    numbers, held, goes_on = itertools.count(1), threading.Event(), asyncio.Event()

    async def before(method: str, path: str) -> None:
        if method == "POST" and path.endswith(end) and next(numbers) >= number:
            held.set()
            await goes_on.wait()

    name = f"torn-{number}-{end[1:]}"
    shell.proxy.before = before
    shell.begin(name)
    assert held.wait(240), "the write is about to be made"
    shell.on_cluster(shell.cluster.delete_namespace())
    shell._loop.call_soon_threadsafe(goes_on.set)
    shell.until(lambda: TERMINATING in shell.why(name), "it waits, with the reason")
    with shell.settles():
        shell.until(lambda: not shell.pods(), "what was made of the gang is removed")
    shell.on_cluster(shell.loses_namespace())
    shell.on_cluster(shell.make_namespace())
    shell.is_whole(name)
    assert shell.job(name)["restarts"] == 0
