"""Draw the pictures of docs/experiments.md from the scenarios beside this file.

    python examples/11-scheduling/draw.py                      # all of them
    python examples/11-scheduling/draw.py pack-or-spread       # one; --seeds 3 for fewer repetitions

Each scenario is simulated once for each seed, and the results are drawn together. It needs the extra `simulate`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from oarlock.simulator import running, scenario
from oarlock.simulator.outcomes import outcome
from oarlock.simulator.reports import charts, summary

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "docs" / "experiments"

# Okabe and Ito's colours, which colour-blind people can distinguish. Lines differ in their dashes too.
BLUE, ORANGE, GREEN, RED, PURPLE, BLACK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#000000"


class Experiment(NamedTuple):
    """An experiment. `columns` are its own figures, in addition to those of all experiments."""

    seeds: int
    draw: Callable[[Sequence[outcome.Outcome]], Any]
    columns: Mapping[str, Callable[[outcome.Outcome], float]] = {}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    asked.add_argument("--seeds", type=int, help="repetitions of each")
    asked.add_argument("--out", type=Path, default=PICTURES)
    given = asked.parse_args()
    if unknown := set(given.experiments) - set(EXPERIMENTS):
        asked.error(f"there is no experiment {', '.join(sorted(unknown))}; choose from {', '.join(EXPERIMENTS)}")
    charts.check()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.experiments or EXPERIMENTS:
        seeds, draw, columns = EXPERIMENTS[name]
        found = list(simulated(read(name), range(1, (given.seeds or seeds) + 1)))
        file = given.out / f"{name}.png"
        draw(found).savefig(file, metadata={"Software": None})
        print("\n".join([f"{file}, {given.seeds or seeds} seeds", "", *table(found, columns), ""]))


def read(name: str) -> scenario.Scenario:
    return scenario.load(HERE / f"{name}.yaml")


def simulated(of: scenario.Scenario, seeds: Iterable[int]) -> Iterator[outcome.Outcome]:
    """Simulate every run of the scenario with every seed, and yield the outcomes."""
    for seed in seeds:
        reseeded = msgspec.structs.replace(of, seed=seed)
        for result in running.results(reseeded, HERE, scenario.Run(), (), lambda run, jobs: lambda *progress: None):
            print(f"seed {seed}, {result.outcome.run}: {result.decisions.cpu_s:.1f} s of CPU", file=sys.stderr)
            yield result.outcome


def by_run(found: Iterable[outcome.Outcome]) -> dict[str, list[outcome.Outcome]]:
    """Return the outcomes of each run, in the order of the scenario."""
    runs: dict[str, list[outcome.Outcome]] = {}
    for one in found:
        runs.setdefault(one.run, []).append(one)
    return runs


def table(found: Iterable[outcome.Outcome], columns: Mapping[str, Callable[[outcome.Outcome], float]]) -> list[str]:
    """Return a Markdown table: for each run the mean over seeds, with the least and the greatest in brackets."""
    all_columns = {**COLUMNS, **columns}
    lines = [["", *all_columns], ["---"] * (1 + len(all_columns))]
    for run, several in by_run(found).items():
        lines.append([run])
        for measure in all_columns.values():
            values = [measure(one) for one in several]
            lines[-1].append(f"{said(summary.mean(values))} ({said(min(values))} to {said(max(values))})")
    return ["| " + " | ".join(line) + " |" for line in lines]


def said(value: float) -> str:
    return f"{value:.3g}" if value > 1e-4 else "0"


# The measurements


def queued_s(found: Iterable[outcome.Outcome]) -> list[float]:
    """Return the seconds from arrival to the first start of every job; infinity if it never started."""
    return [
        math.inf if story.first_start is None else story.first_start - story.arrived
        for one in found
        for story in one.stories
    ]


def filled_at(found: outcome.Outcome) -> float:
    """Return the time at which all GPUs are held for the first time."""
    held = charts.steps((span.start, span.end, span.devices) for span in found.spans)
    return next(at for at, count in held if count == found.devices)


def deadlocked(found: outcome.Outcome) -> float:
    """Return the share of learners with GPUs that wait for siblings when the cluster is full."""
    at = filled_at(found)
    holding = [span for span in found.spans if span.start <= at < span.end]
    return sum(not span.useful[0] <= at < span.useful[1] for span in holding) / len(holding)


def idle(found: outcome.Outcome) -> list[tuple[float, float]]:
    """Return (seconds, share of idle GPUs) from the time the cluster was full until no job waited."""
    begins, starts = filled_at(found), [story.first_start for story in found.stories]
    ends = max(found.over if start is None else start for start in starts)
    useful = charts.steps((*span.useful, span.devices) for span in found.spans)
    parts = []
    for (start, count), (end, _) in zip(useful, [*useful[1:], (math.inf, 0)], strict=True):
        seconds = min(end, ends) - max(start, begins)
        if seconds > 0:
            parts.append((seconds, 1 - count / found.devices))
    return parts


def mean_idle(found: outcome.Outcome) -> float:
    parts = idle(found)
    return sum(seconds * share for seconds, share in parts) / sum(seconds for seconds, _ in parts)


def useful(found: outcome.Outcome, start: float, seconds: float) -> float:
    """Return the share of all GPUs that did useful work in the `seconds` from `start` on."""
    worked = sum(
        span.devices * max(0.0, min(span.useful[1], start + seconds) - max(span.useful[0], start))
        for span in found.spans
    )
    return worked / (found.devices * seconds)


# The pictures


def pack_or_spread(found: Sequence[outcome.Outcome]) -> Any:
    """Draw the share of jobs that were queued for longer than a number of minutes."""
    figure, (axes,) = _figure(1, 5.6)
    for (run, several), style in zip(by_run(found).items(), [(BLUE, "-"), (RED, "--"), (ORANGE, "-.")], strict=True):
        waits = queued_s(several)
        shares = [100 * sum(wait > 60 * minutes for wait in waits) / len(waits) for minutes in range(121)]
        axes.step(range(121), shares, where="post", label=run, color=style[0], ls=style[1])
    axes.axvline(15, color=BLACK, lw=0.8, ls=":")
    axes.annotate(
        "15 minutes", (15, 1), xycoords=("data", "axes fraction"), xytext=(4, -12), textcoords="offset points"
    )
    axes.set(xlabel="queued for longer than, minutes", ylabel="share of jobs, %", xlim=(0, 120), ylim=(0, None))
    axes.legend()
    return figure


def gang_or_pods(found: Sequence[outcome.Outcome]) -> Any:
    """Draw the learners that wait for siblings when the cluster is full, and the idle GPUs over time."""
    figure, (learners, gpus) = _figure(2, 8.4)
    lines: dict[str, list[outcome.Outcome]] = {}
    for run, several in by_run(found).items():
        job, _, way = run.partition(", ")
        lines.setdefault(f"{job}, one by one" if way == "pod by pod" else "as a gang, all of these", []).extend(several)
    colours = [(BLACK, ":"), (BLUE, "-"), (ORANGE, "--"), (RED, "-.")]
    for (label, several), (colour, dashes) in zip(lines.items(), colours, strict=True):
        style = {"color": colour, "ls": dashes, "label": label}
        _cumulative(learners, [(1.0, 100 * deadlocked(one)) for one in several], **style)
        _cumulative(gpus, [(seconds, 100 * share) for one in several for seconds, share in idle(one)], **style)
    learners.set(xlabel="learners that hold GPUs and wait for siblings, %", ylabel="share of runs, %")
    gpus.set(xlabel="idle GPUs while jobs are queued, %", ylabel="share of the time, %")
    learners.legend(fontsize=8, loc="lower right")
    return figure


def load(found: Sequence[outcome.Outcome]) -> Any:
    """Draw the completion and waiting times against the load, with a line for each policy."""
    figure, (completion, waiting) = _figure(2, 8.4)
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for run, several in by_run(found).items():
        often, _, policy = run.partition(" ")
        figures = [summary.of(one) for one in several]
        completion_s = summary.mean([one.completion_mean_s for one in figures])
        waited_s = summary.mean([one.waited_mean_s for one in figures])
        lines.setdefault(policy, []).append((float(often.removesuffix("x")), completion_s / 3600, waited_s / 3600))
    styles = [(BLUE, "--", "o"), (RED, "-.", "^"), (GREEN, "-", "s"), (PURPLE, ":", "D")]
    for (policy, points), (colour, dashes, marker) in zip(lines.items(), styles, strict=False):
        style = {"color": colour, "ls": dashes, "marker": marker, "ms": 4, "label": policy}
        completion.plot([often for often, _, _ in points], [hours for _, hours, _ in points], **style)
        waiting.plot([often for often, _, _ in points], [hours for _, _, hours in points], **style)
    for axes, quantity in ((completion, "completion time"), (waiting, "time without GPUs")):
        axes.set(xlabel="load, relative", ylabel=f"mean {quantity}, hours", ylim=(0, None))
    completion.legend()
    return figure


def elastic_or_fixed(found: Sequence[outcome.Outcome]) -> Any:
    """Draw the distribution of completion times, and the working GPUs over time."""
    figure, (done, busy) = _figure(2, 8.4)
    for (run, several), (colour, dashes) in zip(
        by_run(found).items(), [(BLACK, ":"), (BLUE, "--"), (RED, "-")], strict=True
    ):
        style = {"color": colour, "ls": dashes, "label": run}
        stories = [story for one in several for story in one.stories]
        _cumulative(done, [(1.0, (story.completion_s or math.inf) / 3600) for story in stories], **style)
        hours = [place / 4 for place in range(int(4 * max(one.over for one in several) / 3600) + 2)]
        shares = [100 * summary.mean([useful(one, hour * 3600, 900.0) for one in several]) for hour in hours]
        busy.step(hours, shares, where="post", **style)
    done.set(xscale="log", xlim=(0.05, 10), xlabel="completion time, hours", ylabel="share of jobs, %")
    busy.set(xlim=(0, None), ylim=(0, 102), xlabel="time, hours", ylabel="GPUs doing useful work, %")
    done.legend()
    return figure


def prediction_error(found: Sequence[outcome.Outcome]) -> Any:
    """Draw the increase of the completion time by errors, with bars from the least to the greatest of all seeds."""
    figure, (axes,) = _figure(1, 5.6)
    runs = {run: [summary.of(one).completion_mean_s for one in several] for run, several in by_run(found).items()}
    exact = runs.pop("no error")
    lines: dict[str, list[tuple[float, list[float]]]] = {}
    for run, several in runs.items():
        quantity, _, part = run.partition(", ")
        longer = [100 * (mean_s / exact_s - 1) for mean_s, exact_s in zip(several, exact, strict=True)]
        lines.setdefault(quantity, [(0.0, [0.0])]).append((float(part.removesuffix(" %")), longer))
    styles = [(BLUE, "--", "o", -0.6), (RED, "-", "^", 0.6)]
    for (quantity, points), (colour, dashes, marker, aside) in zip(lines.items(), styles, strict=True):
        means = [summary.mean(longer) for _, longer in points]
        reach = [
            [mean - min(longer) for mean, (_, longer) in zip(means, points, strict=True)],
            [max(longer) - mean for mean, (_, longer) in zip(means, points, strict=True)],
        ]
        axes.errorbar(
            [part + aside for part, _ in points],
            means,
            yerr=reach,
            color=colour,
            ls=dashes,
            marker=marker,
            ms=5,
            capsize=3,
            label=f"errors in the {quantity}",
        )
    axes.axhline(0, color=BLACK, lw=0.8)
    axes.set(xlabel="errors of up to, %", ylabel="mean completion, longer by, %")
    axes.legend(loc="upper left")
    return figure


COLUMNS: Mapping[str, Callable[[outcome.Outcome], float]] = {
    "completion, mean, h": lambda one: summary.of(one).completion_mean_s / 3600,
    "completion, p99, h": lambda one: summary.of(one).completion_p99_s / 3600,
    "without GPUs, mean, h": lambda one: summary.of(one).waited_mean_s / 3600,
    "queued over 15 minutes, %": lambda one: 100 * summary.of(one).queued_long_share,
    "GPUs working, %": lambda one: 100 * summary.of(one).useful_share,
    "restarts per job": lambda one: summary.of(one).restarts_per_job,
}

EXPERIMENTS = {
    "pack-or-spread": Experiment(5, pack_or_spread),
    "gang-or-pods": Experiment(
        30,
        gang_or_pods,
        {
            "learners that wait for siblings, %": lambda one: 100 * deadlocked(one),
            "GPUs idle while jobs are queued, %": lambda one: 100 * mean_idle(one),
        },
    ),
    "load": Experiment(3, load),  # the longest
    "elastic-or-fixed": Experiment(5, elastic_or_fixed),
    "prediction-error": Experiment(5, prediction_error),
}


def _cumulative(axes: Any, weighted: Sequence[tuple[float, float]], **style: Any) -> None:
    """Draw the share of values (in per cent, by weight) that are not above x."""
    total, sofar, points = sum(weight for weight, _ in weighted), 0.0, [(0.0, 0.0)]
    for weight, value in sorted(weighted, key=lambda one: one[1]):
        sofar += weight
        points.append((value, 100 * sofar / total))
    axes.step([value for value, _ in points], [share for _, share in points], where="post", **style)
    axes.set(xlim=(-1, 100), ylim=(0, 102))


def _figure(columns: int, width: float) -> tuple[Any, list[Any]]:
    from matplotlib.backends import backend_agg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 3.4), dpi=100, layout="constrained")
    backend_agg.FigureCanvasAgg(figure)
    (row,) = figure.subplots(1, columns, squeeze=False)
    for axes in row:
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, list(row)


if __name__ == "__main__":
    main()
