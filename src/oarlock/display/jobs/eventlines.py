"""The event log of a job in lines: events of one kind are folded, and an event's short facts become words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oarlock.spec import events
from oarlock.spec.checkpoints import checkpointlocations

FOLDED = ("task_", "checkpoint_", "stacks_", "batch_", "refused")
"""Beginnings of the kinds of events that are folded, because a job has many of them."""


def folded(found: Sequence[events.Record]) -> list[tuple[events.Record, int]]:
    """Return the last event of each group, and the size of the group.

    Events of one kind in `FOLDED` are a group as long as no event of another sort lies between them.
    """
    lines: dict[tuple[int, str], tuple[events.Record, int]] = {}
    others = 0
    for record in found:
        alone = not record.kind.startswith(FOLDED)
        others += alone
        key = (others, "" if alone else record.kind)
        _, count = lines.pop(key, (record, 0))
        lines[key] = record, count + 1
    return list(lines.values())


def facts(data: Mapping[str, Any]) -> str:
    """Return `worker-0 attempt=1 phase=PROCESSING`: the short facts of an event. Lists and objects are left out."""
    short = {name: value for name, value in data.items() if isinstance(value, (str, int, float)) and value != ""}
    said = []
    if {"role", "index"} <= short.keys():
        said.append(f"{short.pop('role')}-{short.pop('index')}")
        if short.get("incarnation") == 1:
            del short["incarnation"]
    for name, value in short.items():
        said.append(f"{name}={checkpointlocations.short(str(value)) if name == 'path' else value}")
    return " ".join(said)
