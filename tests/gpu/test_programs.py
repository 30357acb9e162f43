"""The programs of examples/02-strategies on a GPU, with two processes where they train with others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu import pairs
from tests.train import crew
from tests.train.strategies import test_strategies as programs


def said(folder: Path, kind: str, *command: str) -> str:
    """Run the program as two processes, and return their output."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("OARLOCK_")}
    ours |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(crew.free_port()), "WORLD_SIZE": "2"}
    ranks = []
    for rank in (0, 1):
        env = ours | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | pairs.place(kind, rank)
        with (folder / f"rank-{rank}.txt").open("w") as output:
            command_line = [sys.executable, *command]
            ranks.append(
                subprocess.Popen(command_line, cwd=programs.EXAMPLES, env=env, stdout=output, stderr=subprocess.STDOUT)
            )
    try:
        codes = [rank.wait(timeout=120) for rank in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    text = "\n".join((folder / f"rank-{rank}.txt").read_text() for rank in (0, 1))
    assert codes == [0, 0], text
    return text


@pytest.mark.parametrize("strategy", ["auto", "ps", "ps-async"])
def test_data_parallelism_learns(tmp_path: Path, strategy: str) -> None:
    assert programs.told(programs.ACCURACY, said(tmp_path, pairs.NCCL, "data_parallel.py", strategy)) > 0.9


@pytest.mark.parametrize("program", ["sharded.py", "tensor_parallel.py", "pipeline.py", "by_hand.py"])
def test_a_model_on_several_processes_learns(tmp_path: Path, program: str) -> None:
    assert programs.told(r"loss ([\d.]+)", said(tmp_path, pairs.NCCL, program)) < 0.2
