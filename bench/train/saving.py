"""How long a training stands still for a checkpoint: for the copy of its state, against waiting for the disk."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench import table
from oarlock.train.checkpointing import checkpoints
from oarlock.train.worlds import World


def run(pairs: int = 15) -> list[table.Row]:
    torch.set_num_threads(1)
    state = {"model": nn.Sequential(*[nn.Linear(1250, 1250) for _ in range(4)]).state_dict()}
    per_25_mb = 25e6 / sum(each.numel() * each.element_size() for each in state["model"].values())
    stalls, works, waits = measured(state, torch.device("cpu"), pairs)
    stall, work = (table.median(each[1:]) * per_25_mb * 1e3 for each in (stalls, works))
    detail = (
        f"{table.spread([1e3 * each for each in stalls[1:]], 'ms')}, the first {stalls[0] * 1e3:.0f} ms; processor "
        f"time {work:.1f} ms; a save that waits for the disk {table.median(waits) * 1e3:.0f} ms; "
        f"load {os.getloadavg()[0]:.0f}"
    )
    return [table.Row("saving", "stall of a checkpoint, per 25 MB", stall, "ms", 4.0, detail=detail)]


def measured(state: dict[str, Any], device: torch.device, pairs: int) -> tuple[list[float], list[float], list[float]]:
    """Save this state, in turns beside the training and waiting for the disk. Return the seconds of each stall, the
    processor time in it, and the seconds of each save that waits.
    """
    stalls, works, waits = [], [], []
    alone = World(0, 1, 0, device)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        kept = checkpoints.Checkpoints(Path(folder), alone, attempt=1, round_number=1, keep=1, say=lambda text: None)
        stack.callback(kept.close)
        for pair in range(pairs):
            if device.type == "cuda":
                torch.cuda.synchronize()
            began, worked = time.perf_counter(), time.thread_time()
            kept.begin(2 * pair + 1, state, {}, {})
            stalls.append(time.perf_counter() - began)
            works.append(time.thread_time() - worked)
            kept.finish()
            kept.prune()
            began = time.perf_counter()
            kept.save(2 * pair + 2, state, {}, {})
            waits.append(time.perf_counter() - began)
            kept.prune()
    return stalls, works, waits
