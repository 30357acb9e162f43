"""The accuracy of Deep Gradient Compression at 99.9 %, against dense training with the same seeds, and without each of
its four tricks.

Two models of more than a million parameters: a CNN on digits, and a network that predicts the next character of
Python's help. The results of each seed are kept in `.bench/`, so that a run that was stopped goes on with the next
seed. A change of the script or of the compression begins anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench import table

SCRIPT = Path(__file__).parents[1] / "scripts" / "accuracy.py"
FOLDER = Path(__file__).parents[2] / ".bench"
MEASURED = Path(__file__).parents[2] / "src" / "oarlock" / "train" / "compression"
SEEDS = int(os.environ.get("BENCH_SEEDS", "20"))
METHODS = ("dense", "DGC", "no correction", "no masking", "no clipping", "no warm-up", "plain top-k")
NAMES = {"digits": "CNN on digits", "text": "characters of text"}
T_95 = {5: 2.78, 10: 2.26, 20: 2.09}
"""Of Student's distribution, for so many pairs."""


def digits() -> list[table.Row]:
    return run("digits")


def text() -> list[table.Row]:
    return run("text")


def run(model: str) -> list[table.Row]:
    found = known(model)
    for seed in range(SEEDS):
        missing = [method for method in METHODS if (seed, method) not in found]
        if missing:
            began = time.perf_counter()
            found |= measured(model, seed, missing)
            bar = "=" * (seed + 1) + "." * (SEEDS - seed - 1)
            sys.stderr.write(
                f"{NAMES[model]} [{bar}] seed {seed + 1} of {SEEDS}, {time.perf_counter() - began:.0f} s\n"
            )
    return rows(model, found)


def known(model: str) -> dict[tuple[int, str], float]:
    """Return the accuracies that earlier runs of the same code have measured, by seed and method."""
    path = FOLDER / f"accuracy-{model}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    ours = [one for one in lines if one.get("code") == digest() and one["seed"] < SEEDS]
    return {(one["seed"], one["method"]): one["accuracy"] for one in ours}


def digest() -> str:
    """Return a digest of the script and of the compression."""
    files = [SCRIPT, *sorted(MEASURED.glob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def measured(model: str, seed: int, methods: list[str]) -> dict[tuple[int, str], float]:
    """Train once with each of these methods, and keep each result as soon as it is there."""
    FOLDER.mkdir(exist_ok=True)
    found, code = {}, digest()
    command = [sys.executable, str(SCRIPT), model, str(seed), *methods]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        with (FOLDER / f"accuracy-{model}.jsonl").open("a") as kept:
            for line in running.stdout:
                one = json.loads(line)
                kept.write(json.dumps({"seed": seed, "code": code, **one}) + "\n")
                kept.flush()
                found[seed, str(one["method"])] = float(one["accuracy"])
    finally:
        running.kill()
        running.communicate()
    if len(found) < len(methods):
        raise RuntimeError(f"{SCRIPT.name} ended with {len(found)} of {len(methods)} results for seed {seed}")
    return found


def rows(model: str, found: Mapping[tuple[int, str], float]) -> list[table.Row]:
    made = []
    dense = [100 * found[seed, "dense"] for seed in range(SEEDS)]
    for method in METHODS[1:]:
        gains = [100 * found[seed, method] - dense[seed] for seed in range(SEEDS)]
        detail = f"n={SEEDS} pairs; dense {statistics.mean(dense):.2f} %"
        if SEEDS > 1:
            half = T_95.get(SEEDS, 2.1) * statistics.stdev(gains) / math.sqrt(SEEDS)
            detail += f"; 95 % interval {statistics.mean(gains) - half:+.2f} to {statistics.mean(gains) + half:+.2f}"
        name = "DGC 99.9 %" if method == "DGC" else method if method == "plain top-k" else f"DGC 99.9 %, {method}"
        what = f"{name}, {NAMES[model]}, accuracy less that of dense training"
        reach = -0.3 if method == "DGC" else None
        made.append(table.Row("accuracy", what, statistics.mean(gains), "points", reach, True, detail))
    return made
