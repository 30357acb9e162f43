"""TensorBoard shows what guests write: a scalar of each program is asked of it by HTTP."""

from __future__ import annotations

import json
import math
import signal
import time
import urllib.parse
import urllib.request
from typing import Any

import pytest
from tests.guests import sides as both
from tests.guests import test_clusters as clusters

pytestmark = pytest.mark.guests

TENSORFLOW = ("--framework", "tensorflow", "--workers", "2")
PROGRAMS = {
    "tensorflow": ((*TENSORFLOW, "--", "python", "tf_mirrored.py"), "loss", 10),
    "tensorflow-fit": ((*TENSORFLOW, "--", "python", "tf_fit.py"), "epoch_loss", 10),
    "tensorflow-ps": (
        (*TENSORFLOW, "--chief", "--ps", "1", "--cpus", "0.2", "--", "python", "tf_servers.py"),
        "loss",
        40,
    ),
    "jax": (("--framework", "jax", "--workers", "2", "--", "python", "with_jax.py"), "loss", 10),
    "mpi": (
        ("--framework", "mpi", "--workers", "2", *clusters.SAID, "--", "mpirun", "-n", "2", "python", "with_mpi.py"),
        "weight",
        20,
    ),
}
MODULES = {
    "tensorflow": "tensorflow",
    "tensorflow-fit": "tensorflow",
    "tensorflow-ps": "tensorflow",
    "jax": "jax",
    "mpi": "mpi4py",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_tensorboard_shows_it(sides: both.Sides, name: str) -> None:
    both.need(MODULES[name], "tensorboard")
    command, tag, steps = PROGRAMS[name]
    sides.oarlock("--name", f"board-{name}", "--tensorboard", *command)
    (address,) = clusters.free_addresses(1)
    board = sides.shell.start("tensorboard", f"board-{name}", "--port", address.rpartition(":")[2], together=True)
    try:
        site = f"http://localhost:{address.rpartition(':')[2]}/data/plugin/scalars"
        (run,) = [run for run, tags in asked(f"{site}/tags").items() if tag in tags]
        points = asked(f"{site}/scalars?{urllib.parse.urlencode({'run': run, 'tag': tag})}")
        assert [step for _, step, _ in points] == list(range(steps))
        values = [value for _, _, value in points]
        assert all(math.isfinite(value) for value in values)
        assert abs(values[-1] - values[0]) > 0.01, "it has learned"
    finally:
        board.send_signal(signal.SIGINT)
        print(board.communicate(timeout=30)[0])


def asked(url: str) -> Any:
    """Return what TensorBoard answers, once it has started and has read something."""
    deadline = time.monotonic() + both.PATIENCE_S
    why: object = "it never answered"
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found = json.load(answer)
            if found:
                return found
            why = "it has read nothing"
        except OSError as cause:  # it does not listen yet
            why = cause
        time.sleep(0.5)
    raise AssertionError(f"{url}: {why}")
