"""A table of summaries: a line for each number, a column for each run. Text alone: who shows it decides how."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from oarlock.simulator import outcome, summary
from oarlock.spec import quantities

Line = tuple[str, Callable[[summary.Summary], str]]

NOTHING = "-"
"""Instead of a number of jobs that there are none of: 0 would be the best there is."""


def _time(value_s: float) -> str:
    return f"{value_s:,.0f} s"


def _long(value_s: float) -> str:
    return quantities.duration_text(value_s)


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
    ("completion, mean", _completed(lambda one: _time(one.completion_mean_s))),
    ("completion, median", _completed(lambda one: _time(one.completion_median_s))),
    ("completion, p99", _completed(lambda one: _time(one.completion_p99_s))),
    ("makespan", lambda one: _long(one.makespan_s)),
    ("devices held", lambda one: _share(one.held_share)),
    ("devices doing useful work", lambda one: _share(one.useful_share)),
    ("device-hours lost", lambda one: f"{one.lost_device_h:,.1f}" if one.lost_device_h else ""),
    ("restarts", lambda one: f"{one.restarts:,}"),
    ("restarts per job", lambda one: f"{one.restarts_per_job:.2f}"),
    ("queued, mean", _waited(lambda one: _time(one.queued_mean_s))),
    ("queued, p99", _waited(lambda one: _time(one.queued_p99_s))),
    ("queued over 15 minutes", _waited(lambda one: _share(one.queued_long_share))),
    ("waited in all, mean", lambda one: _time(one.waited_mean_s)),
    ("slowdown against 1/N, median", _completed(lambda one: f"{one.slowdown_median:.2f}")),
    ("slower than with 1/N", _completed(lambda one: _share(one.slower_share))),
    ("Jain's index of slowdowns", _completed(lambda one: f"{one.jain:.3f}")),
    ("nodes lost", lambda one: _count(one.faults.get("nodes_lost", 0))),
    ("processes failed", lambda one: _count(one.faults.get("processes_failed", 0))),
    ("tasks not made", lambda one: _count(one.faults.get("launches_failed", 0))),
)


def table(results: Sequence[outcome.Result]) -> tuple[list[str], list[list[str]]]:
    """Titles, and lines in which something stands. What was measured on this machine comes last."""
    found = [summary.of(result.outcome) for result in results]
    lines = [[title, *(show(one) for one in found)] for title, show in LINES]
    measured = [summary.decisions(result.decisions) for result in results]
    lines += [
        ["decisions", *(f"{one.plans:,}" for one in measured)],
        ["decision time, median", *(f"{1000 * one.median_s:.2f} ms" for one in measured)],
        ["decision time, p99", *(f"{1000 * one.p99_s:.2f} ms" for one in measured)],
        ["CPU of the simulation", *(f"{one.cpu_s:.1f} s" for one in measured)],
    ]
    return ["", *(one.run for one in found)], [line for line in lines if any(line[1:])]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """For programs. `measured` is the only part that another time may give otherwise."""

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
