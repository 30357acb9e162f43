"""`python -m bench [NAME ...]`: run the benches, print the table, and put it into docs/benchmarks.md.

Everything is measured against something in the same run, in turn, because machines are shared and noisy: ratios and
medians count, not a single time.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time

from rich import console as consoles
from rich import table as tables

from bench import (
    commandline,
    drain,
    elastic,
    firstline,
    idle,
    install,
    lines,
    metrics,
    starts,
    submits,
    table,
    training,
)
from bench.kubernetes import kube, objects, pods
from bench.pages import large, living, packages, stage, visits
from bench.pages import serving as pageserving
from bench.scheduler import placing, policies, scheduling
from bench.train import (
    accuracy,
    advising,
    apart,
    choosing,
    gpu,
    growing,
    pictures,
    ratios,
    reducing,
    saving,
    serving,
    staleness,
    together,
    working,
)

BENCHES = {
    "commandline": commandline.run,
    "firstline": firstline.run,
    "idle": idle.run,
    "install": install.run,
    "drain": drain.run,
    "submits": submits.run,
    "lines": lines.run,
    "metrics": metrics.run,
    "training": training.run,
}
SCHEDULER = {
    "policies": policies.run,
    "placing": placing.run,
    "scheduling": scheduling.run,
}
"""By themselves, with `make bench-scheduler`."""

TRAIN = {
    "together": together.run,
    "saving": saving.run,
    "working": working.run,
    "serving": serving.run,
    "reducing": reducing.run,
    "advising": advising.run,
    "choosing": choosing.run,
    "elastic": elastic.run,
    "starts": starts.run,
    "ratios": ratios.run,
    "apart": apart.run,
    "growing": growing.run,
    "staleness": staleness.run,
    "accuracy-digits": accuracy.digits,
    "accuracy-text": accuracy.text,
    "pictures": pictures.run,
}
"""By themselves, with `make bench-train`: they need root, and half an hour. `pictures` draws the saved figures."""

GPU = {"gpu": gpu.run}
"""With `make bench-gpu`: it needs a GPU."""

KUBERNETES = {"kube": kube.run, "kube-alone": kube.alone, "objects": objects.run, "pods": pods.run}
"""With `make bench-kube`: they need an API server, and `pods` a cluster that runs pods."""

PAGES = {
    "visits": visits.run,
    "lists": pageserving.run,
    "idle-pages": living.idle,
    "heap": living.heap,
    "log": large.log,
    "follow": large.follow,
    "charts": large.metrics,
    "map": large.nodes,
    "verdicts": large.verdicts,
    "fifty": living.together,
    "package": packages.run,
}
"""With `make bench-web`: they need a Chromium."""

ALL = BENCHES | SCHEDULER | TRAIN | GPU | KUBERNETES | PAGES


def _place(name: str) -> str:
    """Return the table of the page that has this bench."""
    return table.PAGES if name in PAGES else table.GPUS if name in GPU else table.FIGURES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *ALL], metavar="NAME", help=", ".join(ALL))
    parser.add_argument("--save", action="store_true", help="put the figures into docs/benchmarks.md")
    options = parser.parse_args()
    if options.save and stage.SHORT:
        parser.error("the figures of a short run (BENCH_SHORT) are not kept")
    console = consoles.Console(stderr=True)
    system = f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {system}"
    rows: list[table.Row] = []
    failed: list[str] = []
    for name in options.names or BENCHES:
        began, when = time.perf_counter(), table.now()
        try:
            with console.status(f"{name} ..."):
                found = ALL[name]()
            rows += found
            for row in found:
                console.print(" | ".join(row.cells()), markup=False)
            if options.save:  # at once: a run that is cut off keeps its figures
                table.save(found, f"Measured on {machine}, each row on its day.", when, _place(name))
        except Exception as error:  # noqa: BLE001  (the others are still worth having)
            failed.append(name)
            console.print(f"{name} failed: {error}", markup=False)
        console.print(f"{name}: {time.perf_counter() - began:.0f} s")
    shown = tables.Table("figure", "measured", "goal", "reached", "details", title=machine)
    for row in rows:
        shown.add_row(*row.cells())
    consoles.Console().print(shown)
    return 0 if not failed and all(row.reached is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
