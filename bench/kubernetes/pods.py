"""Jobs on a cluster that runs pods, against the same work without Oarlock or without pods, in turn.

KUBECONFIG names the cluster. One of its nodes is this machine, so that pods reach a server here, and its nodes have the
images of `tests/node/images.sh`. Only the last figure needs many pods: 70 at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

from tests.e2e import shell as shells
from tests.node import outside

from bench import table
from bench.scripts import paced

ROOT = Path(__file__).parent.parent.parent
PLAIN, TORCH = "registry.example/plain:1", "registry.example/torch-cpu:1"
NAMESPACE = "oarlock-bench"
SETTINGS = f'[kubernetes]\nnamespace = "{NAMESPACE}"\nimages = {{torch = "{TORCH}"}}\n'
LINES, DIGITS = 5, 3
EPOCHS = 400
CPUS = "0.9"
LIGHT, HEAVY = 7, 70
"""A tenth of the jobs of FfDL's test of its control plane."""
STEPS = 300
PATIENCE_S = 1800.0


def run() -> list[table.Row]:
    kubeconfig = os.environ.get("KUBECONFIG", "")
    host = outside.address(str(Path(kubeconfig).absolute())) if kubeconfig else ""
    if not host:
        raise RuntimeError("KUBECONFIG must name a cluster with this machine as a node: see tests/node/cluster.sh")
    folder = Path(tempfile.mkdtemp(prefix="oarlock-bench-"))
    cluster = Cluster(str(Path(kubeconfig).absolute()))
    local = shells.Shell(folder / "local")
    try:
        with cluster.namespace(), outside.opened(cluster.kubeconfig, host, folder / "pods", SETTINGS) as pods:
            return [first_line(cluster, pods), digits(pods, local), *load(pods)]
    finally:
        local.do("down", code=None)
        shutil.rmtree(folder, ignore_errors=True)


class Cluster:
    """The cluster, as `kubectl` reaches it."""

    def __init__(self, kubeconfig: str) -> None:
        self.kubeconfig = kubeconfig

    def command(self, *words: str) -> list[str]:
        return ["kubectl", "--kubeconfig", self.kubeconfig, *words]

    @contextlib.contextmanager
    def namespace(self) -> Iterator[None]:
        """Make the namespace of the pods, and remove it with all that is in it."""
        subprocess.run(self.command("create", "namespace", NAMESPACE), check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run(self.command("delete", "namespace", NAMESPACE), check=False, capture_output=True)


def first_line(cluster: Cluster, pods: shells.Shell) -> table.Row:
    """Compare `oarlock run` with `kubectl run`, from the start of the command to the line `here`."""
    say = ("sh", "-c", "echo here")
    ours = [shells.OARLOCK, "run", "--framework", "plain", "--cpus", "0.1", "--image", PLAIN, "--", *say]
    more, theirs = [], []
    _until_here(ours, pods)
    for number in range(LINES):
        flags = ("--image", PLAIN, "--image-pull-policy", "Never", "--restart", "Never", "--attach")
        bare = cluster.command("--namespace", NAMESPACE, "run", f"line-{number}", *flags, "--", *say)
        theirs.append(_until_here(bare, pods))
        more.append(_until_here(ours, pods) - theirs[-1])
    what = "from `oarlock run` to the first line in a pod, more than `kubectl run`"
    detail = f"{table.spread(more)}; kubectl run {table.spread(theirs)}"
    return table.Row("pods", what, table.median(more), "s", 3, detail=detail)


def _until_here(command: list[str], shell: shells.Shell) -> float:
    began = time.perf_counter()
    with subprocess.Popen(
        command,
        env=shell.env,
        cwd=shell.work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "here":
                took = time.perf_counter() - began
                process.stdout.read()
                return took
    raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}, and did not say it")


def digits(pods: shells.Shell, local: shells.Shell) -> table.Row:
    """Compare the training of the digits by two workers in pods with the one by processes of this machine."""
    ratios, seconds, starts = [], [], []
    for _ in range(DIGITS):
        there, start = _trained(pods)
        here, _ = _trained(local)
        ratios.append(there / here)
        seconds.append(here)
        starts.append(start)
    what = "training of the digits by two workers, in pods against processes of the host"
    detail = (
        f"{table.spread(ratios, '')}; {table.median(seconds):.1f} s on the host; pods started in {table.spread(starts)}"
    )
    return table.Row("pods", what, table.median(ratios), "x", 1.05, detail=detail)


def _trained(shell: shells.Shell) -> tuple[float, float]:
    """Return the run time of a training, and the seconds from its submission to the start of its processes."""
    shutil.copy(ROOT / "examples" / "01-digits" / "train.py", shell.work)
    words = ("--workers", "2", "--cpus", CPUS, "--name", "digits")
    shell.do("run", *words, "--", "python", "train.py", "--epochs", str(EPOCHS), timeout_s=PATIENCE_S)
    job = shell.job("digits")
    return run_time(job), job["attempts"][-1]["processing_at"] - job["created_at"]


def run_time(job: dict[str, Any]) -> float:
    """Return the seconds from the start of a job's user processes to the end of the last of them."""
    if job["phase"] != "COMPLETED":
        raise RuntimeError(f"{job['name']} is {job['phase']}: see `oarlock why`")
    (attempt,) = job["attempts"]
    return float(max(task["exit"]["at"] for task in attempt["tasks"]) - attempt["processing_at"])


def load(pods: shells.Shell) -> list[table.Row]:
    """Compare the run time of jobs that run alone with that of many at once. A job waits, as if for a GPU."""
    shutil.copy(ROOT / "bench" / "scripts" / "paced.py", pods.work)
    (alone,) = _run_times(pods, 1)
    rows = []
    for name, count in (("light", LIGHT), ("heavy", HEAVY)):
        many = _run_times(pods, count)
        detail = f"{table.spread(many)}; alone {alone:.1f} s; {STEPS} steps, each of which prints a line"
        what = f"run time of a job under {name} load ({count} jobs at once, in pods), against a job alone"
        rows.append(table.Row("pods", what, table.median(many) / alone, "x", 1.02, detail=detail))
    return rows


def _run_times(pods: shells.Shell, count: int) -> list[float]:
    words = ("--detach", "--framework", "plain", "--image", TORCH, "--cpus", "10m", "--memory", "32Mi")
    names = [f"paced-{count}-{number}" for number in range(count)]

    def submit(name: str) -> None:
        pods.do("run", *words, "--name", name, "--", "python3", "paced.py", str(STEPS), timeout_s=PATIENCE_S)

    with futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(submit, names))
    time.sleep(STEPS * paced.STEP_S)
    return [run_time(pods.wait_phase(name, "COMPLETED", "FAILED", "CANCELED", timeout_s=PATIENCE_S)) for name in names]
