"""`oarlock advise`: the speedup that it predicts from one and two workers, against that of four and eight.

A sleep takes the place of computing, so that eight workers do not compete for two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import table

SCRIPT = Path(__file__).parents[1] / "scripts" / "sleeping.py"
CHECKED = (4, 8)
SECONDS = 20


def run() -> list[table.Row]:
    oarlock = str(Path(sys.executable).with_name("oarlock"))
    checks = [word for workers in CHECKED for word in ("--check", str(workers))]
    options = ["--json", "--no-threads", "--strategy", "allreduce", "--seconds", str(SECONDS), *checks]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / SCRIPT.name).write_text(SCRIPT.read_text())
        command = [oarlock, "advise", *options, "--", sys.executable, SCRIPT.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode:
        raise RuntimeError(f"oarlock advise ended with {done.returncode}: {done.stderr[-2000:]}")
    rows = []
    for one in json.loads(done.stdout)["predictions"]:
        if one["workers"] in CHECKED and one["error"] is not None:
            what = f"`advise`, speedup with {one['workers']} workers, error of the prediction"
            detail = f"predicted {one['speedup']:.2f}, measured {one['measured']:.2f}; load {os.getloadavg()[0]:.0f}"
            rows.append(table.Row("advising", what, 100 * abs(one["error"]), "%", 15.0, detail=detail))
    return rows
