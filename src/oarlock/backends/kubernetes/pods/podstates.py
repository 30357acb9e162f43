"""The state of a pod as an observation of its task, in plain words.

    made, not bound        RUNNING   without a time since which it is bound
    bound, starting        RUNNING   `pulling image X`, `image X cannot be pulled: WHY`
    running                RUNNING
    being deleted          RUNNING   until the kubelet has confirmed it: the object is gone
    ended, and the kubelet tells how each container ended          GONE, with the exit record
    ended, without a word on the containers (evicted, lost)      ENDED: to be deleted, which the kubelet confirms
    the task's container has ended, and another runs               ENDED
    the object is gone                                             GONE

A pod whose node does not answer stays as it is, also while it is being deleted: its processes may run on.
"""

from __future__ import annotations

import datetime as dt
import re

import msgspec

from oarlock.backends.kubernetes import amounts
from oarlock.backends.kubernetes.apiserver import objects
from oarlock.backends.kubernetes.pods import labels, rendering
from oarlock.spec import attempts
from oarlock.spec.protocol import exitrecords
from oarlock.spec.reconciling import observations

State = observations.State

PULLS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"})
_BACKED_OFF = "ImagePullBackOff"
_CONFIGURING = "CreateContainerConfigError"
_ENDED = frozenset({"Succeeded", "Failed"})
_OOM = "OOMKilled"
_EVICTED = "Evicted"
_SIGKILL = 9
_OF_OTHERS = frozenset({attempts.Cause.PLATFORM, attempts.Cause.STOPPED})
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun", "CreateContainerError"})
_DISRUPTED = {
    "PreemptionByScheduler": "preempted by another scheduler",
    "PreemptionByKubeScheduler": "preempted by another scheduler",
    "EvictionByEvictionAPI": "evicted, as when a node is drained",
    "DeletionByTaintManager": "removed from a tainted node",
    "DeletionByPodGC": "removed with its node",
    "TerminationByKubelet": "ended by its node",
}
"""The reasons of the condition `DisruptionTarget` (1.26 and newer). Our own deletions do not set it."""
MAX_WORDS = 300


def observed(key: attempts.TaskKey, pod: objects.Pod, *, trouble: str = "", pull: str = "") -> observations.Observed:
    """Return the state of the pod's task. `trouble` is its node's, where that is not ready; `pull` why its image could
    not be pulled when that was last said.
    """
    state = state_of(pod)
    ended = state is not State.RUNNING
    return observations.Observed(
        key=key,
        state=state,
        exit=exit_of(pod) if ended else None,
        bound_at=bound_at(pod),
        detail=_ended_detail(pod) if ended else _detail(pod, trouble, pull),
    )


def vanished(key: attempts.TaskKey, last: objects.Pod) -> observations.Observed:
    """Return the state of a task whose pod is gone. `last` is the pod as it was last seen."""
    return observations.Observed(
        key=key, state=State.GONE, exit=exit_of(last), bound_at=bound_at(last), detail=_ended_detail(last)
    )


def bound_at(pod: objects.Pod) -> float | None:
    """Return when the pod was bound to its node (Unix seconds); 0 where it was made so, None where it is not bound."""
    if not pod.spec.node_name:
        return None
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True":
            return _seconds(condition.last_transition_time)
    return 0.0


def preempted(seen: observations.Observed, why: str) -> observations.Observed:
    """Return the observation with `why`, the words in which another scheduler says that it has preempted the pod.

    The agent and the kubelet know only that the task was stopped.
    """
    known = seen.exit
    if not why or seen.state is State.RUNNING or (known is not None and known.cause not in _OF_OTHERS):
        return seen
    at = known.at if known is not None else 0.0
    known = known or attempts.Exit(code=128 + _SIGKILL, cause=attempts.Cause.PLATFORM, at=at)
    words = f"{_DISRUPTED['PreemptionByScheduler']}: {why}"[:MAX_WORDS]
    return msgspec.structs.replace(
        seen, exit=msgspec.structs.replace(known, cause=attempts.Cause.PLATFORM, reason=words)
    )


def is_disrupted(pod: objects.Pod) -> bool:
    """Return whether the cluster says in the pod why it takes the pod away (1.26 and newer)."""
    return bool(_disruption(pod))


def pull_failure(pod: objects.Pod) -> str:
    """Return why an image cannot be pulled, where the pod says so now. A pod that waits to try again only says that."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason in PULLS and waiting.reason != _BACKED_OFF:
            return (waiting.message or waiting.reason)[:MAX_WORDS]
    return ""


def exit_of(pod: objects.Pod) -> attempts.Exit | None:
    """Return how the task ended: its agent's record, else the account of the kubelet or of the cluster; None: not
    known.
    """
    found = _exit(pod)
    if found is None or found.cause is not attempts.Cause.OOM:
        return found
    return msgspec.structs.replace(found, memory_limit_bytes=_memory_limit_bytes(pod))


def _exit(pod: objects.Pod) -> attempts.Exit | None:
    status = _task(pod)
    ended = status.state.terminated if status is not None else None
    at = _seconds(ended.finished_at) if ended is not None else 0.0
    if ended is not None and (record := _record(ended.message, at)) is not None:
        if ended.reason == _OOM and record.cause in {attempts.Cause.SIGNAL, attempts.Cause.ERROR}:
            return msgspec.structs.replace(record, cause=attempts.Cause.OOM, reason="oom")
        if record.cause in _OF_OTHERS and (why := _disruption(pod) or _failure(pod)):  # it knows only of its SIGTERM
            return msgspec.structs.replace(record, cause=attempts.Cause.PLATFORM, reason=why)
        return record
    if ended is not None and ended.reason == _OOM:  # the agent itself was the victim
        return attempts.Exit(
            code=ended.exit_code or 128 + _SIGKILL, cause=attempts.Cause.OOM, at=at, signal=_SIGKILL, reason="oom"
        )
    if pod.status.reason == _EVICTED:
        lines = (pod.status.message[:MAX_WORDS],) if pod.status.message else ()
        return attempts.Exit(
            code=128 + _SIGKILL, cause=attempts.Cause.PLATFORM, at=at, reason="evicted", last_lines=lines
        )
    if why := _platform(pod)[:MAX_WORDS].rstrip(": "):
        return attempts.Exit(code=128 + _SIGKILL, cause=attempts.Cause.PLATFORM, at=at, reason=why)
    return None


def _platform(pod: objects.Pod) -> str:
    """Return how the platform ended the pod, or kept it from running; empty where the pod does not say so."""
    if why := _failure(pod) or _disruption(pod):
        return why
    for status in pod.status.init_container_statuses:
        ended = status.state.terminated
        if ended is not None and ended.exit_code:
            return f"its init container ended with code {ended.exit_code}: {ended.message or ended.reason}"
    task = _task(pod)
    ended = task.state.terminated if task is not None else None
    if ended is not None and ended.reason in _NOT_STARTED:
        return f"its container could not start: {ended.message or ended.reason}"
    return ""


def _failure(pod: objects.Pod) -> str:
    """Return why the kubelet gave the pod up, as for an eviction; empty where it has not."""
    return _ended_detail(pod) if pod.status.phase == "Failed" and pod.status.reason else ""


def _disruption(pod: objects.Pod) -> str:
    """Return why the cluster is taking the pod away, in words; empty where it does not say so."""
    for condition in pod.status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            words = f"{_DISRUPTED.get(condition.reason, condition.reason)}: {condition.message}"
            return words[:MAX_WORDS].rstrip(": ")
    return ""


def _memory_limit_bytes(pod: objects.Pod) -> int | None:
    """Return the memory limit of the task's container as the cluster has it: limit ranges may add one."""
    limits = next((one.resources.limits for one in pod.spec.containers if one.name == rendering.TASK), {})
    return amounts.units(limits["memory"]) if "memory" in limits else None


def state_of(pod: objects.Pod) -> State:
    if pod.status.phase not in _ENDED:
        task = _task(pod)
        ended = task is not None and task.state.terminated is not None
        return State.ENDED if ended else State.RUNNING
    told = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    if pod.status.container_statuses and all(one.state.terminated or one.state.waiting for one in told):
        return State.GONE
    return State.ENDED


def is_steered(meta: objects.Meta) -> bool:
    """Return whether the pod was made for the stock scheduler."""
    return labels.BOUND_BY in meta.annotations


def unscheduled(pod: objects.Pod) -> str:
    """Return why a scheduler has not bound the pod, in its own words; empty where it has not said so."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason
    return ""


def _detail(pod: objects.Pod, trouble: str, pull: str) -> str:
    """Return the obstacle to the task, in words that stay the same while it stays the same."""
    if trouble:
        return f"{trouble} ({pod.spec.node_name})"[:MAX_WORDS]
    if pod.metadata.deletion_timestamp is not None:
        return "its pod is being deleted, and its node has not confirmed yet that its processes have ended"
    if not pod.spec.node_name:
        why = unscheduled(pod) if is_steered(pod.metadata) else ""
        return f"no scheduler has bound its pod yet: {why}"[:MAX_WORDS] if why else ""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is None or not waiting.reason:
            continue
        if waiting.reason in PULLS:
            image = status.image or _image(pod, status.name)
            return f"image {image} cannot be pulled{f': {pull}' if pull else ''}"
        if waiting.reason == _CONFIGURING and (lacking := _lacking(pod.metadata, waiting.message)):
            return f"{lacking}: {waiting.message}"[:MAX_WORDS].rstrip(": ")
        if waiting.reason not in {"ContainerCreating", "PodInitializing"}:
            return f"{waiting.reason}: {waiting.message}"[:MAX_WORDS].rstrip(": ")
    return ""


def _lacking(meta: objects.Meta, message: str) -> str:
    """Return which secrets of the job cannot be read, where the message of the kubelet names their Secret."""
    words = set(re.findall(r"[-.a-z0-9]+", message))
    named = [one for one in labels.referred(meta) if one.at.secret in words]
    exact = [one for one in named if re.search(rf"\bkey {re.escape(one.at.key)} ", message)]
    told = [f"{one.name} (the key {one.at.key} of the Secret {one.at.secret})" for one in exact or named]
    return f"a secret that the job names cannot be read, {' or '.join(told)}" if told else ""


def _ended_detail(pod: objects.Pod) -> str:
    said, why = pod.status.message, pod.status.reason
    if why == _EVICTED:
        return f"evicted: {said}"[:MAX_WORDS]
    if why.startswith(("OutOf", "Unexpected", "NodeAffinity", "Preempt")):
        return f"its node refused it: {said or why}"[:MAX_WORDS]
    return f"{why}: {said}"[:MAX_WORDS].strip(": ")


def _image(pod: objects.Pod, name: str) -> str:
    every = (*pod.spec.init_containers, *pod.spec.containers)
    return next((container.image for container in every if container.name == name), "")


def _task(pod: objects.Pod) -> objects.ContainerStatus | None:
    return next((one for one in pod.status.container_statuses if one.name == rendering.TASK), None)


def _record(message: str, at: float) -> attempts.Exit | None:
    if not message:
        return None
    try:
        return exitrecords.read(message.encode(), now=at)
    except msgspec.MsgspecError:
        return None


def _seconds(text: str | None) -> float:
    """Return a time of RFC 3339 as Unix seconds; 0 where nothing is said."""
    if not text:
        return 0.0
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def key(pod: objects.Pod) -> attempts.TaskKey | None:
    return labels.key(pod.metadata)
