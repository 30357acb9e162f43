"""`oarlock advise`: measure a training script on this machine, and predict how it scales.

It needs no server. The script runs several times for some seconds: with one process, with two and each strategy, and
with more where that is asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from oarlock.cli import command
from oarlock.cli.output import terminal
from oarlock.display import amounts
from oarlock.spec import errors

if TYPE_CHECKING:
    from oarlock.cli.advising import scaling

SECONDS = 6.0
WIDTH = 30
CHECKED = (4, 8)
"""The numbers of workers that are checked where this machine has the cores for them."""
SLOWED = 1.1
"""Workers share cores where their own part of a step takes more than so many times that of two workers."""


@command.verb(
    "advise",
    short_help="Measure a training script, and predict how it scales",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@command.option(
    "--seconds", type=click.FloatRange(1, 3600), default=SECONDS, show_default=True, help="Duration of each trial."
)
@command.option(
    "--strategy",
    "strategies",
    type=click.Choice(["allreduce", "bf16", "powersgd", "dgc", "ps"]),
    multiple=True,
    show_default="all",
    help="Strategy to try with two workers. Can be repeated.",
)
@command.option(
    "--check",
    type=click.IntRange(2, 64),
    multiple=True,
    metavar="N",
    show_default="4 and 8, if OMP_NUM_THREADS is set and this machine has as many cores for each of them",
    help="Also run each strategy with N workers, and print the errors of the predictions. Can be repeated.",
)
@command.option(
    "--link",
    type=click.FloatRange(0, min_open=True),
    metavar="GBIT",
    show_default="this machine's own",
    help="Predict for a network of so many Gbit/s between the workers.",
)
@command.option(
    "--threads/--no-threads", default=True, show_default=True, help="Whether to try numbers of CPU threads."
)
@command.json_option
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
def advise(
    words: tuple[str, ...],
    seconds: float,
    strategies: tuple[str, ...],
    check: tuple[int, ...],
    link: float | None,
    threads: bool,
    as_json: bool,
) -> None:
    """Run COMMAND with one and two processes on this machine, and predict its speedup with 1 to 64 workers.

    COMMAND is a script with a Session of `oarlock.train`. The prediction is for workers that each have a processor or a
    GPU of their own. Trials leave no checkpoints, but all other effects of the script happen in each of them.
    """
    from oarlock.cli.advising import scaling

    wanted = ("allreduce", *(each for each in scaling.STRATEGIES[1:] if not strategies or each in strategies))
    one, by_threads = _alone(words, seconds, threads)
    twos, refused = _pairs(words, seconds, wanted)
    network = scaling.Link(link * 1e9 / 8 if link is not None else None)
    counts = sorted(set(check)) or ([] if link else [count for count in CHECKED if _have_cores(count)])
    checked, failed = _checks(words, seconds, twos, counts)
    found = scaling.predict(one, twos, checked, network)
    if as_json:
        terminal.json_out(_report(one, by_threads, twos, refused, checked, failed, found))
    else:
        _show(one, by_threads, twos, refused, found, network)
        _tell_checks(one, twos, found, checked, failed, counts, network)


def _trial(words: Sequence[str], workers: int, seconds: float, **settings: Any) -> scaling.Trial:
    from oarlock.cli.advising import trials

    told = " ".join(f"{name} {value}" for name, value in settings.items() if name == "threads")
    asked = settings.get("strategy") or {}
    how = next((str(asked[field]) for field in ("compression", "kind") if asked.get(field, "none") != "none"), "")
    how += f", {amounts.counted(asked['servers'], 'server')}" if asked.get("servers", 1) > 1 else ""
    terminal.say(f"{amounts.counted(workers, 'worker')} {told or how} ...".replace("  ", " "))
    return trials.run(words, workers, seconds=seconds, **settings)


def _alone(words: Sequence[str], seconds: float, sweeps: bool) -> tuple[scaling.Trial, dict[int, scaling.Trial]]:
    """Return the trial of one worker as the script is, and those with other numbers of threads."""
    one = _trial(words, 1, seconds)
    cores = _cores()
    counts = sorted({1, cores, *(1 << power for power in range(7) if 1 << power < cores)}) if sweeps else []
    return one, {count: _trial(words, 1, seconds, threads=count) for count in counts}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _have_cores(workers: int) -> bool:
    """Return whether so many workers have as many cores each as in the other trials. Unless OMP_NUM_THREADS is set,
    two workers divide all cores, and more of them have fewer.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return threads.isdecimal() and workers * int(threads) <= _cores()


def _pairs(
    words: Sequence[str], seconds: float, wanted: Sequence[str]
) -> tuple[dict[str, scaling.Trial], dict[str, str]]:
    """Return the trials of two workers by strategy, and the reasons why others cannot be tried."""
    twos: dict[str, scaling.Trial] = {}
    refused: dict[str, str] = {}
    for name in wanted:
        try:
            twos[name] = _trial(words, 2, seconds, strategy=_fields(name))
        except errors.InvalidInput as failed:
            if name == "allreduce":
                raise
            refused[name] = _reason(failed)
    return twos, refused


def _checks(
    words: Sequence[str], seconds: float, twos: Mapping[str, scaling.Trial], counts: Sequence[int]
) -> tuple[dict[str, list[scaling.Trial]], dict[str, str]]:
    """Return the trials of these strategies with so many workers, and the reasons why some have failed. They have as
    many parameter servers as the predictions.
    """
    from oarlock.cli.advising import scaling

    checked: dict[str, list[scaling.Trial]] = {}
    failed: dict[str, str] = {}
    for name, two in twos.items():
        for workers in counts:
            fields = _fields(name, scaling.servers_for(two, workers))
            try:
                checked.setdefault(name, []).append(_trial(words, workers, seconds, strategy=fields))
            except errors.InvalidInput as cause:
                if name == "allreduce":
                    raise
                failed[f"{name} with {amounts.counted(workers, 'worker')}"] = _reason(cause)
    return checked, failed


def _reason(failed: errors.InvalidInput) -> str:
    return failed.hint.splitlines()[-1] if failed.hint else str(failed)


def _fields(name: str, servers: int = 1) -> dict[str, object]:
    """Return the fields under `strategy` in a job file, and the number of parameter servers. DGC is tried as it is
    after its warm-up.
    """
    if name == "ps":
        return {"kind": "ps", "servers": servers}
    if name == "allreduce":
        return {"kind": "allreduce", "compression": "none"}
    return {"kind": "allreduce", "compression": name, **({"warm_up_steps": 0} if name == "dgc" else {})}


def _report(
    one: scaling.Trial,
    by_threads: Mapping[int, scaling.Trial],
    twos: Mapping[str, scaling.Trial],
    refused: Mapping[str, str],
    checked: Mapping[str, Sequence[scaling.Trial]],
    failed: Mapping[str, str],
    found: Sequence[scaling.Prediction],
) -> dict[str, object]:
    dense = twos["allreduce"]
    return {
        "one": _trial_fields(one),
        "two": {name: _trial_fields(trial) for name, trial in twos.items()},
        "checked": [{"strategy": name, **_trial_fields(trial)} for name, trials in checked.items() for trial in trials],
        "unchecked": dict(failed),
        "refused": dict(refused),
        "ratio": _ratio(dense),
        "threads": {str(count): trial.per_s for count, trial in by_threads.items()},
        "gains": {name: dense.step_s / trial.step_s for name, trial in twos.items() if name != "allreduce"},
        "predictions": [{**asdict(each), "error": each.error} for each in found],
    }


def _trial_fields(trial: scaling.Trial) -> dict[str, object]:
    return {**asdict(trial), "per_s": trial.per_s}


def _ratio(two: scaling.Trial) -> float | None:
    """Return the seconds of computing for each second of waiting for gradients; None where nothing waits."""
    return two.own_s / two.sync_s if two.sync_s else None


def _show(
    one: scaling.Trial,
    by_threads: Mapping[int, scaling.Trial],
    twos: Mapping[str, scaling.Trial],
    refused: Mapping[str, str],
    found: Sequence[scaling.Prediction],
    link: scaling.Link,
) -> None:
    _measured(one, twos, refused)
    _threads(one, by_threads)
    _speedups(found, link)


def _tell_checks(
    one: scaling.Trial,
    twos: Mapping[str, scaling.Trial],
    found: Sequence[scaling.Prediction],
    checked: Mapping[str, Sequence[scaling.Trial]],
    failed: Mapping[str, str],
    counts: Sequence[int],
    link: scaling.Link,
) -> None:
    """Say the error of each prediction that was checked, and which were not."""
    terminal.out()
    if link.bytes_per_s is not None:
        terminal.paragraph(
            "No prediction was checked: this machine has no such network. Leave --link out to check some."
        )
        return
    if not counts:
        _tell_how_to_check(one, found)
        return
    for each in found:
        if each.workers not in counts:
            continue
        name = f"{each.strategy} with {amounts.counted(each.workers, 'worker')}"
        if each.error is not None:
            told = f"predicted {each.speedup:.2f}, measured {each.measured:.2f}, error {each.error:+.0%}"
            told += f", {amounts.counted(each.servers, 'server')}" if each.servers else ""
            trial = next(trial for trial in checked[each.strategy] if trial.workers == each.workers)
            slowed = trial.own_s / twos[each.strategy].own_s if twos[each.strategy].own_s else 1.0
            if slowed > SLOWED:
                told += (
                    f". Without the waiting for gradients a step took {slowed:.2f} times that of 2 workers: they "
                    "shared cores, as they would not on machines of their own"
                )
        else:
            told = f"not checked: {terminal.clean(failed[name])}"
        terminal.paragraph(f"{name}: {told}")
    others = ", ".join(str(count) for count in sorted({each.workers for each in found} - {1, *counts}))
    terminal.paragraph(f"Not checked: the predictions for {others} workers.")


def _tell_how_to_check(one: scaling.Trial, found: Sequence[scaling.Prediction]) -> None:
    """Say why nothing was checked, and how to do so."""
    cores, least = _cores(), CHECKED[0]
    steps = [
        f"{_ms(one.step_s * each.workers / each.speedup)} ms with {each.strategy}"
        for each in found
        if each.workers == least
    ]
    terminal.paragraph(
        f"No prediction was checked: {least} workers would share the {amounts.counted(cores, 'core')} of this machine, "
        "and have fewer each than those of the trials."
    )
    if cores >= least:
        terminal.paragraph(
            f"With OMP_NUM_THREADS={cores // least} in the environment all workers have as many threads, and "
            f"{least} of them are checked."
        )
    terminal.paragraph(
        f"To check one on your cluster, run the job there with {least} workers. A step should take "
        f"{', '.join(steps)}, and `oarlock metrics JOB` shows it. `--check {least}` checks here all the same."
    )


def _measured(one: scaling.Trial, twos: Mapping[str, scaling.Trial], refused: Mapping[str, str]) -> None:
    from oarlock.cli.output import tables
    from oarlock.display.tables import columns

    unit = "examples/s" if one.examples else "steps/s"
    rows = [["1 worker", "", _ms(one.step_s), "", _ms(one.data_s), "", amounts.rate(one.per_s), ""]]
    dense = twos["allreduce"]
    for name, trial in twos.items():
        gain = f"{dense.step_s / trial.step_s:.2f}" if name != "allreduce" else ""
        sent = f"{trial.sent_bytes / 1e6:.3g}"
        rows.append(
            [
                "2 workers",
                name,
                _ms(trial.step_s),
                _ms(trial.sync_s),
                _ms(trial.data_s),
                sent,
                amounts.rate(trial.per_s),
                gain,
            ]
        )
    heads = ("TRIAL", "STRATEGY", "STEP ms", "GRADIENTS ms", "DATA ms", "SENT MB", unit.upper(), "GAIN")
    tables.show([columns.Column(head, right=number > 1) for number, head in enumerate(heads)], rows)
    ratio = _ratio(dense)
    told = f"{ratio:.3g} to 1" if ratio is not None else "no waiting for gradients was seen"
    terminal.paragraph(f"computing to communication, allreduce with 2 workers: {told}")
    if "dgc" in twos:
        terminal.paragraph("dgc is as after its warm-up: in the first 1,000 steps it sends more.")
    for name, reason in refused.items():
        terminal.paragraph(f"{name} was not tried: {terminal.clean(reason)}")


def _threads(one: scaling.Trial, by_threads: Mapping[int, scaling.Trial]) -> None:
    if not by_threads:
        return
    terminal.out()
    unit = "examples/s" if one.examples else "steps/s"
    terminal.out(f"CPU threads of one worker, {unit}")
    most = max(trial.per_s for trial in by_threads.values())
    for count, trial in by_threads.items():
        terminal.out(f"  {count:>3} {_bar(trial.per_s / most)} {amounts.rate(trial.per_s)}")


def _speedups(found: Sequence[scaling.Prediction], link: scaling.Link) -> None:
    terminal.out()
    over = f"over {link.bytes_per_s * 8 / 1e9:g} Gbit/s" if link.bytes_per_s else "over this machine's own network"
    terminal.out(f"Predicted speedup over one worker, {over} (and its bounds)")
    for strategy in dict.fromkeys(each.strategy for each in found):
        terminal.out(f"  {strategy}")
        for each in found:
            if each.strategy == strategy:
                bounds = f"({each.least:.3g} to {each.most:.3g})" if each.workers > 2 else ""
                servers = f", {amounts.counted(each.servers, 'server')}" if each.servers else ""
                bar = _bar(min(1.0, each.speedup / each.workers))
                terminal.out(f"  {each.workers:>3} {bar} {each.speedup:>5.3g} {bounds}{servers}".rstrip())


def _bar(part: float) -> str:
    from oarlock.display import bars

    return bars.progress(part, WIDTH, unicode=terminal.speaks_unicode(sys.stdout))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
