"""Strategy `auto` against every fixed choice, over three links with three models: a training of 1,000 steps.

Two workers, each with a parameter server beside it. The steps until the choice, the measuring and two steps after it
are taken as they are; the rest of the 1,000, and all steps of a fixed choice, as the median of some. The warm-up of DGC
takes 1,000 steps, too: each of its four stages is timed, for the fixed choice and for that of `auto`, which is told the
number of steps as a session tells it. All methods run in turn, ROUNDS times, and the median of the rounds counts.

One more cell has parameter servers that win clearly. Over slow links that are alike in both directions they never do: a
ring of n workers sends 2 (n - 1) / n times the gradients and receives as much at the same time, servers beside the
workers send as much, and with servers apart each worker sends the gradients and then receives the weights. But where a
machine sends more slowly than it receives, as behind a limit on sending, that is all that counts: the gradients once to
a server whose machine is a fast one, and one and a half times in a ring of four.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import table
from bench.train import links, ranks

SCRIPT = Path(__file__).parents[1] / "scripts" / "together.py"
LINKS = {10_000: "10 Gbit/s", 1000: "1 Gbit/s", 100: "100 Mbit/s"}
MODELS = {"mlp": 0.0, "VGG16": 0.3, "GoogLeNet": 0.1}
"""With the seconds of sleep a step."""
LOSSLESS = ("allreduce", "ps")
LOSSY = (*LOSSLESS, "bf16", "powersgd-2", "dgc-warm")
METHODS = (*LOSSY, "auto", "auto-lossy")
STEPS = 1000
ROUNDS = {"mlp": 5, "VGG16": 2, "GoogLeNet": 2}
"""The steps of the MLP are arithmetic, which varies more on a shared machine than a sleep."""
SAMPLED = {10_000: 30, 1000: 20, 100: 7}
"""Timed steps in a round. Short steps vary more."""
REACH = 1.1
SENDERS, SENDING, RECEIVING, SENDERS_MODEL, SENDERS_S = 4, 20, 10_000, "GoogLeNet", 0.05
"""The workers of the last cell, the Mbit/s at which they send and receive, their model and its seconds of sleep. Four
workers and a server share two cores here, so the link is slow enough for that.
"""
SELECTED = os.environ.get("BENCH_CELLS", "")
"""Such as `100:mlp`: that link with that model alone. `senders`: the last cell alone."""


def run() -> list[table.Row]:
    found: dict[str, list[tuple[float, str]]] = {"auto": [], "auto-lossy": []}
    for megabits, rate in LINKS.items():
        for model, seconds in MODELS.items():
            if SELECTED in ("", f"{megabits}:{model}"):
                taken: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
                with links.link(megabits) as machines:
                    for method in METHODS * ROUNDS[model]:
                        taken[method].append(_measured(machines, method, model, seconds, SAMPLED[megabits]))
                for auto, fixed in (("auto", LOSSLESS), ("auto-lossy", LOSSY)):
                    best = min(fixed, key=lambda method: total(taken[method]))
                    ratio = total(taken[auto]) / total(taken[best])
                    chosen = " and ".join(dict.fromkeys(each["choice"] for each in taken[auto]))
                    detail = f"{rate}, {model} {ratio:.2f} (chose {chosen}, the best is {best})"
                    found[auto].append((ratio, detail))
    apart = [_senders()] if SELECTED in ("", "senders") else []
    load = f"load {os.getloadavg()[0]:.0f}"
    names = {"auto": "lossless choices", "auto-lossy": 'compression="auto", all choices'}
    return [
        table.Row(
            "choosing",
            f"`auto` against the best fixed choice, the worst of 3 links x 3 models, {names[auto]}",
            max(cells)[0],
            "x",
            REACH,
            detail="; ".join([*(detail for _, detail in cells), load]),
        )
        for auto, cells in found.items()
        if cells
    ] + apart


def _senders(rounds: int = 2) -> table.Row:
    """Return the row of workers that send more slowly than they receive, with a server on a fast machine apart."""
    taken: dict[str, list[dict[str, Any]]] = {method: [] for method in (*LOSSLESS, "auto")}
    with links.network(SENDING, SENDERS + 1, receives=RECEIVING, fast=1) as machines:
        workers, others = machines[:SENDERS], machines[SENDERS:]
        for method in list(taken) * rounds:
            taken[method].append(_measured(workers, method, SENDERS_MODEL, SENDERS_S, 7, others))
    seconds = {method: total(runs) / STEPS for method, runs in taken.items()}
    best = min(LOSSLESS, key=seconds.__getitem__)
    chosen = " and ".join(dict.fromkeys(each["choice"] for each in taken["auto"]))
    steps = ", ".join(f"{method} {1e3 * took:.0f} ms" for method, took in seconds.items())
    what = f"{SENDERS} workers that send over {SENDING} Mbit/s and receive over {LINKS[RECEIVING]}, a server apart"
    return table.Row(
        "choosing",
        f"`auto` against the best fixed choice, {what}, lossless choices",
        seconds["auto"] / seconds[best],
        "x",
        REACH,
        detail=f"{SENDERS_MODEL}'s shapes (chose {chosen}, the best is {best}); the mean step: {steps}; "
        f"load {os.getloadavg()[0]:.0f}",
    )


def total(rounds: list[dict[str, Any]]) -> float:
    """Return the seconds of a training of STEPS steps, as the median of the rounds."""
    return table.median(
        [
            sum(taken["before_choice"]) + sum(count * table.median(seconds) for count, seconds in taken["stages"])
            for taken in rounds
        ]
    )


def _measured(
    machines: Sequence[links.Machine],
    method: str,
    model: str,
    seconds: float,
    sampled: int,
    servers: Sequence[links.Machine] = (),
) -> dict[str, Any]:
    """Train with one of these methods. The parameter servers are beside the workers, unless they have machines."""
    with ranks.servers(servers or machines) as known:
        env = {**known, **ranks.SERVED} if method == "ps" else {}
        if method.startswith("auto"):
            env = {**known, "OARLOCK_STRATEGY": '{"kind": "auto"}'}  # the workers meet without the servers
        return ranks.run(machines, SCRIPT, [method, sampled, model, seconds, STEPS], env)
