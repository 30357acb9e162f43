"""The nodes that a waiting gang lacks, and the request for them to an autoscaler of the cluster."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from oarlock.spec import holdings
from oarlock.spec.cluster import nodes


class Answer(StrEnum):
    NONE = ""  # not yet, or there is nothing that could answer: the numbers are measurements and an Event alone
    ACCEPTED = "accepted"  # the autoscaler adds the nodes
    PROVISIONED = "provisioned"  # it has added them, as it says
    FAILED = "failed"  # it does not add them
    EXPIRED = "expired"  # it no longer keeps the nodes for the gang


ENDED = frozenset({Answer.FAILED, Answer.EXPIRED})
"""Answers after which nothing more comes of a request."""


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of one role, of `amount` each, that go to nodes of one class; "" is a node without a declared class."""

    role: str
    amount: holdings.Resources
    node_class: str
    count: int
    constraints: nodes.Constraints | None = None  # of the gang, on the nodes


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes to be added for a gang, by class, and the places of all its tasks once they are there."""

    nodes: dict[str, int]
    tasks: tuple[Tasks, ...]


class NodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the nodes of a gang, made at `at` (Unix seconds). `number` counts those of the job from 1."""

    number: int
    need: Need
    at: float
    answer: Answer = Answer.NONE
    message: str = ""  # of the autoscaler
    answered_at: float | None = None

    @property
    def open(self) -> bool:
        """Whether nodes may still come of it."""
        return self.answer not in ENDED


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the autoscaler sees it."""

    job: str
    number: int
    answer: Answer
    message: str = ""
