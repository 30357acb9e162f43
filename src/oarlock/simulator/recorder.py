"""A simulation as a job: `python -m oarlock.simulator.recorder SCENARIO [POLICY ...]` writes `simulation.json`.

With `--check` before the scenario it simulates nothing, and prints the refusal of one that is not valid as JSON.

The reports are those of `oarlock simulate --json`. Beside them stand bounded curves for pictures, so that a page can
draw a run of any length. A line of progress goes to the log now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from oarlock.simulator import running, scenario
from oarlock.simulator.engine import simulation
from oarlock.simulator.outcomes import outcome
from oarlock.simulator.reports import charts, comparison
from oarlock.spec import errors, phases
from oarlock.spec.simulator import recordings

FILE = "simulation.json"
CHECK = "--check"
TOLD_EVERY_S = 2.0
MOST_POINTS = 300
MOST_BARS = 4000
MOST_ROWS = 64


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `simulation.json`."""

    reports: tuple[comparison.Report, ...]
    titles: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    curves: tuple[recordings.Curves, ...]


def record(path: Path, policies: Sequence[str]) -> Recording:
    """Simulate the scenario with each policy. Raises as `running.results` does."""
    results = list(running.results(scenario.load(path), path.parent, scenario.Run(), policies, _watch))
    titles, lines = comparison.table(results)
    return Recording(
        reports=tuple(comparison.report(one) for one in results),
        titles=tuple(titles),
        lines=tuple(tuple(line) for line in lines),
        curves=tuple(curves(one.outcome) for one in results),
    )


def curves(found: outcome.Outcome) -> recordings.Curves:
    done = sorted(
        story.completion_s
        for story in found.stories
        if story.completion_s is not None and story.phase == phases.Phase.COMPLETED
    )
    shares = [(at, (place + 1) / len(found.stories)) for place, at in enumerate(done)]
    held = charts.steps((span.start, span.end, span.devices) for span in found.spans)
    useful = charts.steps((*span.useful, span.devices) for span in found.spans)
    names = {story.job: place for place, story in enumerate(found.stories)}
    devices = sorted({(node, index) for span in found.spans for node, indexes in span.held for index in indexes})
    rows = {device: place for place, device in enumerate(devices[:MOST_ROWS])}
    bars = [
        recordings.Bar(rows[node, index], names.get(span.job, 0), span.start, span.end, *span.useful)
        for span in found.spans
        for node, indexes in span.held
        for index in indexes
        if (node, index) in rows
    ]
    return recordings.Curves(
        run=found.run,
        devices=found.devices,
        over=found.over,
        completion=thinned(shares),
        held=thinned(held),
        useful=thinned(useful),
        rows=tuple(f"{node} GPU {index}" for node, index in rows),
        bars=tuple(bars[:MOST_BARS]),
        hidden_rows=len(devices) - len(rows),
        hidden_bars=max(0, len(bars) - MOST_BARS),
    )


def thinned(points: Sequence[tuple[float, float]]) -> recordings.Points:
    """Return at most `MOST_POINTS` of the points, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return tuple(points)
    step = (len(points) - 1) / (MOST_POINTS - 1)
    return tuple(points[round(place * step)] for place in range(MOST_POINTS))


def _watch(run: str, jobs: int) -> simulation.Progress:
    _tell(f"Simulating {run}: {jobs} jobs")
    told_at = time.monotonic()

    def heard(now_s: float, ended: int, total: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= TOLD_EVERY_S:
            told_at = time.monotonic()
            _tell(f"{run}: {ended} of {total} jobs are over")

    return heard


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _check(path: Path, policies: Sequence[str]) -> int:
    try:
        running.check(scenario.load(path), path.parent, policies)
    except errors.OarlockError as error:
        _tell(msgspec.json.encode({"message": error.message, "path": error.path, "hint": error.hint}).decode())
        return error.exit_code
    return 0


def main(words: Iterable[str]) -> int:
    path, *policies = words
    if path == CHECK:
        return _check(Path(policies[0]), policies[1:])
    try:
        found = record(Path(path), policies)
    except errors.OarlockError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    Path(FILE).write_bytes(msgspec.json.encode(found))
    _tell("Done")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
