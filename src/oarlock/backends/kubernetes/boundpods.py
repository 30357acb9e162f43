"""Pods that are created bound (`spec.nodeName`): one request instead of two, for a launch of a single pod.

A gang of several pods is made first and bound then, so that it is bound as a whole or not at all. A single pod is
always whole. But a pod that is created bound may start before the API server's answer was checked, and webhooks and
limit ranges change requests. So the first pod of each shape is created unbound, checked and bound. Once the cluster has
returned a shape unchanged, further pods of that shape are created bound for `TRUSTED_S`. Each of them is checked too,
and removed at once where it does not fit; the shape is not trusted any more then.

A policy of the cluster may refuse pods with a node name. Such a pod is created without one and bound, and so are all
later ones for `REFUSED_S`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog

from oarlock.backends import backends
from oarlock.backends.kubernetes.apiserver import answers, objects
from oarlock.spec import errors, holdings

ANSWER_S = 5.0
"""For so long a launch that is given up waits for the answer to the creation of such a pod."""
TRUSTED_S = 60.0
REFUSED_S = 600.0
MOST_SHAPES = 1000
_OTHERS = frozenset((401, 409))
"""Wrong credentials, and a name that is taken."""

Shape = tuple[holdings.Resources, holdings.Resources, backends.Container]

_log = structlog.get_logger(__name__)


class BoundPods:
    """Belongs to one event loop."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._trusted: dict[Shape, float] = {}  # until when
        self._refused_until = 0.0

    def is_possible(self, launches: Sequence[backends.TaskLaunch]) -> bool:
        """Return whether pods like those of this launch are created bound, once their shape is trusted."""
        return len(launches) == 1 and self._monotonic() >= self._refused_until

    def may(self, launches: Sequence[backends.TaskLaunch]) -> bool:
        """Return whether the pods of this launch may be created bound."""
        return self.is_possible(launches) and self._trusted.get(shape(launches[0]), 0.0) > self._monotonic()

    def returned(self, one: backends.TaskLaunch, *, unchanged: bool) -> None:
        """Take note of how the API server returned the pod."""
        if not unchanged:
            self._trusted.pop(shape(one), None)
            return
        if len(self._trusted) >= MOST_SHAPES:
            self._trusted.clear()
        self._trusted[shape(one)] = self._monotonic() + TRUSTED_S

    def refused(self, why: str) -> None:
        """Take note that the cluster takes the pod without a node name, and did not take it with one."""
        self._refused_until = self._monotonic() + REFUSED_S
        _log.info("kubernetes.node_name_refused", why=why)


def is_refusal(error: errors.OarlockError) -> bool:
    """Return whether a policy may have refused the node name: webhooks answer with any status of their own."""
    told = error.__cause__.detail if isinstance(error.__cause__, errors.OarlockError) else error.detail
    if not isinstance(told, objects.Status) or told.code in _OTHERS | answers.AGAIN:
        return False
    return 400 <= told.code < 500 and "exceeded quota" not in told.message


def shape(one: backends.TaskLaunch) -> Shape:
    """Return the facts of a task on which its pod's requests may depend. All replicas of a burst have the same."""
    return one.holding.amount, one.limit, msgspec.structs.replace(one.container, job_name="", resource=None)
