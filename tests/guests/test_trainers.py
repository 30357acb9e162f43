"""Scripts that know torch's launchers, not Oarlock: ranks, world and loss are those of their own launcher."""

from __future__ import annotations

import pytest
from tests.guests import sides as both

pytestmark = pytest.mark.guests

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")


def test_plain_ddp(sides: both.Sides) -> None:
    expected = sides.direct(*TORCHRUN, "ddp.py")
    assert [line.partition(",")[0] for line in expected] == ["rank 0 of 2", "rank 1 of 2"]
    assert sides.oarlock("--nproc", "2", "--", "python", "ddp.py") == expected
    # In two tasks each rank is the first of its own, as it is with `torchrun --nnodes 2`.
    apart = sides.oarlock("--workers", "2", "--", "python", "ddp.py")
    assert apart == [line.replace("local rank 1", "local rank 0") for line in expected]
    assert sides.oarlock("--workers", "2", "--", "torchrun", "ddp.py") == apart


def test_accelerate(sides: both.Sides) -> None:
    both.need("accelerate")
    one = sides.direct("accelerate", "launch", "--cpu", "--num_processes", "1", "accelerated.py")
    assert sides.oarlock("--", "python", "accelerated.py") == one
    assert sides.oarlock("--", "accelerate", "launch", "--cpu", "--num_processes", "1", "accelerated.py") == one
    # `accelerate launch --cpu --num_processes 2` starts one process; its documentation names torchrun for more.
    two = sides.direct(*TORCHRUN, "accelerated.py")
    assert [line.partition(":")[0] for line in two] == ["rank 0 of 2, 4 batches", "rank 1 of 2, 4 batches"]
    assert sides.oarlock("--nproc", "2", "--", "python", "accelerated.py") == two
    assert sides.oarlock("--workers", "2", "--", "python", "accelerated.py") == two


def test_lightning(sides: both.Sides) -> None:
    both.need("lightning")
    expected = sides.direct("python", "lit.py")
    assert [line.partition(":")[0] for line in expected] == ["rank 0 of 2", "rank 1 of 2"]
    assert sides.oarlock("--nproc", "2", "--", "python", "lit.py") == expected
