"""The programs of examples/02-strategies: each learns, with two processes where it trains with others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.e2e import shell as shells
from tests.train import crew

EXAMPLES = Path(__file__).parents[3] / "examples" / "02-strategies"
RECORDING = str(Path(__file__).with_name("recording.py"))
LOSS, ACCURACY = r"loss (\S+?),? ", r"accuracy (\S+) "
STRATEGIES = ("allreduce", "auto", "bf16", "fp16", "powersgd", "dgc", "ps", "ps-backup", "ps-async", "ps-staleness")
EnvOfRank = Callable[[int], Mapping[str, str]]

pytestmark = pytest.mark.train


def said(
    folder: Path,
    *command: str,
    processes: int = 2,
    ends: int = 0,
    env_of_rank: EnvOfRank = lambda rank: {},
    **settings: str,
) -> str:
    """Run the program as that many processes, as torchrun does. Return their output once each `ends` with this code."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("OARLOCK_")}
    ours |= {"OMP_NUM_THREADS": "1", **settings}
    if processes > 1:
        ours |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(crew.free_port())}
        ours |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
    ranks = []
    for rank in range(processes):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}
        env = ours | place | dict(env_of_rank(rank))
        with (folder / f"rank-{rank}.txt").open("w") as output:
            line = [sys.executable, *command]
            ranks.append(subprocess.Popen(line, cwd=EXAMPLES, env=env, stdout=output, stderr=subprocess.STDOUT))
    try:
        codes = [rank.wait(timeout=280) for rank in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    text = "\n".join((folder / f"rank-{rank}.txt").read_text() for rank in range(processes))
    assert codes == [ends] * processes, text
    return text


def told(pattern: str, text: str) -> float:
    """Return the last number of this kind on a line of the program's own."""
    found = re.findall(rf"^(?:rank \d: )?{pattern}", text + "\n", re.MULTILINE)
    assert found, text
    return float(found[-1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_data_parallelism_learns(tmp_path: Path, strategy: str) -> None:
    apart = {"OARLOCK_SHARED_MEMORY": "0"} if strategy == "dgc" else {}  # as between hosts
    assert told(ACCURACY, said(tmp_path, "data_parallel.py", strategy, **apart)) > 0.9


def test_rows_of_a_table_travel(tmp_path: Path) -> None:
    assert told(ACCURACY, said(tmp_path, "embeddings.py")) > 0.9


def test_a_script_for_horovod_learns(tmp_path: Path) -> None:
    assert told(r"loss ([\d.]+)", said(tmp_path, "horovod_script.py")) < 0.2


def test_workers_come_and_go(tmp_path: Path) -> None:
    """The first worker goes on in its process, and the new one has seen nothing of the loss."""
    user = shells.Shell(tmp_path)
    try:
        text = user.do("submit", str(EXAMPLES / "elastic.yaml"), "--follow").stdout
    finally:
        user.do("down", code=None)
    assert "after 2 and 1 and 2 workers" in text, text
    assert re.search(r"after 2 workers", text), text
    assert all(float(loss) < 0.2 for loss in re.findall(r"loss ([\d.]+), after", text)), text


@pytest.mark.timeout(900)  # three runs
@pytest.mark.parametrize("program", ["sharded.py", "tensor_parallel.py", "pipeline.py", "by_hand.py"])
def test_a_model_on_several_processes_learns_and_outlives_a_halt(tmp_path: Path, program: str) -> None:
    """A run that is halted and resumed has the losses of an uninterrupted one, bit for bit."""
    whole = tmp_path / "whole"
    whole.mkdir()
    assert told(r"loss ([\d.]+)", said(tmp_path, RECORDING, program, str(whole))) < 0.2
    parts, checkpoints = tmp_path / "parts", str(tmp_path / "checkpoints")
    parts.mkdir()
    said(tmp_path, RECORDING, program, str(parts), "40", ends=143, OARLOCK_CHECKPOINTS=checkpoints)
    again = said(tmp_path, RECORDING, program, str(parts), OARLOCK_CHECKPOINTS=checkpoints)
    assert re.search(r"resumed from attempt-1-round-1-step-(4\d|5\d)$", again, re.MULTILINE), again
    for losses in whole.iterdir():
        steps = losses.read_text().splitlines()
        assert (parts / losses.name).read_text().splitlines() == steps
        assert len(steps) == 100


def test_one_process_drives_several_devices(tmp_path: Path) -> None:
    assert told(r"loss ([\d.]+)", said(tmp_path, "in_graph.py", processes=1)) < 0.2


def test_every_program_is_tried() -> None:
    text = Path(__file__).read_text() + (EXAMPLES / "elastic.yaml").read_text()
    assert all(path.name in text for path in EXAMPLES.glob("*.py"))
