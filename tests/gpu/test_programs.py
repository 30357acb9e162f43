"""The programs of examples/02-strategies on a GPU, with two processes where they train with others."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from tests.gpu import pairs
from tests.train.strategies import test_strategies as programs


def said(folder: Path, *command: str) -> str:
    """Run the program as two processes that exchange by NCCL, and return their output."""
    return programs.said(folder, *command, env_of_rank=functools.partial(pairs.place, pairs.NCCL))


@pytest.mark.parametrize("strategy", ["auto", "ps", "ps-async"])
def test_data_parallelism_learns(tmp_path: Path, strategy: str) -> None:
    assert programs.told(programs.ACCURACY, said(tmp_path, "data_parallel.py", strategy)) > 0.9


@pytest.mark.parametrize("program", ["sharded.py", "tensor_parallel.py", "pipeline.py", "by_hand.py"])
def test_a_model_on_several_processes_learns(tmp_path: Path, program: str) -> None:
    assert programs.told(r"loss ([\d.]+)", said(tmp_path, program)) < 0.2
