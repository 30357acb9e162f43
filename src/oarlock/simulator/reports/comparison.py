"""A table that compares runs: a line for each number, a column for each run. It is text; the caller draws it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from oarlock.simulator.outcomes import outcome
from oarlock.simulator.reports import summary
from oarlock.spec.input import quantities

Line = tuple[str, Callable[[summary.Summary], str]]

NOTHING = "-"
"""In the place of a number over no jobs, because 0 would look like the best result."""


def _time(value_s: float) -> str:
    return f"{value_s:,.0f} s"


def _count(value: int) -> str:
    return f"{value:,}" if value else ""


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _completed(show: Callable[[summary.Summary], str]) -> Callable[[summary.Summary], str]:
    return lambda one: show(one) if one.completed else NOTHING


def _waited(show: Callable[[summary.Summary], str]) -> Callable[[summary.Summary], str]:
    return lambda one: show(one) if one.jobs else NOTHING


LINES: tuple[Line, ...] = (
    ("jobs", lambda one: f"{one.jobs:,}"),
    ("could never run", lambda one: _count(one.refused)),
    ("completed", lambda one: f"{one.completed:,}"),
    ("failed", lambda one: _count(one.failed)),
    ("unfinished", lambda one: _count(one.unfinished)),
    ("time to the end, mean", _completed(lambda one: _time(one.completion_mean_s))),
    ("time to the end, median", _completed(lambda one: _time(one.completion_median_s))),
    ("time to the end, 99 % within", _completed(lambda one: _time(one.completion_p99_s))),
    ("first arrival to last end", lambda one: quantities.duration_text(one.makespan_s)),
    ("GPUs held", lambda one: _share(one.held_share)),
    ("GPUs doing useful work", lambda one: _share(one.useful_share)),
    ("GPU-hours of lost work", lambda one: f"{one.lost_device_h:,.1f}" if one.lost_device_h else ""),
    ("restarts", lambda one: f"{one.restarts:,}"),
    ("restarts per job", lambda one: f"{one.restarts_per_job:.2f}"),
    ("wait for first start, mean", _waited(lambda one: _time(one.queued_mean_s))),
    ("wait for it, 99 % within", _waited(lambda one: _time(one.queued_p99_s))),
    ("waited over 15 minutes", _waited(lambda one: _share(one.queued_long_share))),
    ("time without GPUs, mean", lambda one: _time(one.waited_mean_s)),
    ("times an equal share's time", _completed(lambda one: f"{one.slowdown_median:.2f}")),
    ("slower than an equal share", _completed(lambda one: _share(one.slower_share))),
    ("fairness (1: all alike)", _completed(lambda one: f"{one.jain:.3f}")),
    ("nodes lost", lambda one: _count(one.faults.get("nodes_lost", 0))),
    ("processes failed", lambda one: _count(one.faults.get("processes_failed", 0))),
    ("tasks not made", lambda one: _count(one.faults.get("launches_failed", 0))),
)


def table(results: Sequence[outcome.Result]) -> tuple[list[str], list[list[str]]]:
    """Return the titles and the lines that are not empty. Measurements on this machine come last."""
    found = [summary.of(result.outcome) for result in results]
    lines = [[title, *(show(one) for one in found)] for title, show in LINES]
    measured = [summary.decisions(result.decisions) for result in results]
    lines += [
        ["scheduling decisions", *(f"{one.plans:,}" for one in measured)],
        ["time of one, median", *(f"{1000 * one.median_s:.2f} ms" for one in measured)],
        ["time of one, 99 % within", *(f"{1000 * one.p99_s:.2f} ms" for one in measured)],
        ["CPU time to simulate", *(f"{one.cpu_s:.1f} s" for one in measured)],
    ]
    return ["", *(one.run for one in found)], [line for line in lines if any(line[1:])]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run, for programs. Only `measured` may differ when the run is repeated."""

    workload: str
    settings: dict[str, str]
    figures: summary.Summary
    refused: dict[str, str]
    measured: summary.DecisionTimes


def report(result: outcome.Result) -> Report:
    return Report(
        workload=result.outcome.workload,
        settings=result.outcome.settings,
        figures=summary.of(result.outcome),
        refused=result.outcome.refused,
        measured=summary.decisions(result.decisions),
    )
