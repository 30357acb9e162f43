"""Jobs on the GPU of this machine, by the command line: a whole GPU, shares of it, a second job that waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e import shell as shells

SCRIPT = """
import os, torch
from oarlock import train
world = train.init()
torch.manual_seed(1)
model = torch.nn.Linear(64, 2).to(world.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
train.data_parallel(model, optimizer)
batches = train.Batches((torch.randn(640, 64), torch.randint(2, (640,))), 32, seed=1)
with train.Session(model=model, optimizer=optimizer, batches=batches) as session:
    for x, y in session.steps(batches, epochs=5):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)
print("rank", world.rank, world.device, "sees", os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.get_device_name())
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[shells.Shell]:
    one = shells.Shell(tmp_path_factory.mktemp("gpu"))
    one.write("train.py", SCRIPT)
    yield one
    one.do("down", code=None)


def test_a_job_on_a_whole_gpu(shell: shells.Shell) -> None:
    done = shell.do("run", "--gpus", "1", "--name", "whole", "--", "python", "train.py")
    assert "rank 0 cuda:0 sees 0" in done.stdout
    (device,) = shell.json("nodes")["items"][0]["node"]["devices"]
    assert device["uuid"].startswith("GPU-")
    assert device["type"]
    assert device["memory_bytes"] > 1 << 30
    assert shell.do("metrics", "whole").stdout.count("loss") >= 1


def test_two_workers_share_a_gpu(shell: shells.Shell) -> None:
    done = shell.do("run", "--gpus", "0.5", "--workers", "2", "--name", "shared", "--", "python", "train.py")
    assert "rank 0 cuda:0" in done.stdout
    assert "rank 1 cuda:0" in done.stdout


def test_a_second_job_waits_for_the_gpu(shell: shells.Shell, tmp_path: Path) -> None:
    shell.do("run", "--detach", "--gpus", "1", "--name", "first", "--", "sleep", "1000")
    shell.do("run", "--detach", "--gpus", "1", "--name", "second", "--", "python", "train.py")
    assert "gpu" in shell.do("why", "second").stdout.lower()
    shell.do("cancel", "first")
    assert "rank 0 cuda:0" in shell.do("logs", "-f", "second").stdout


def test_more_gpus_than_there_are_is_refused(shell: shells.Shell) -> None:
    done = shell.do("run", "--gpus", "2", "--", "python", "train.py", code=None)
    assert done.returncode != 0
    assert "gpu" in (done.stdout + done.stderr).lower()
