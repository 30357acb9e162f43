"""Training on a GPU: the work of compression on the device, the stall of a checkpoint, and strategies against DDP.

Two ranks share the one GPU. With NCCL each says that it is a host of its own (NCCL_HOSTID), since NCCL refuses two
ranks on a device of one host, and they exchange through sockets. With gloo they are shares of the GPU, as with
`gpus: 0.5`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench import table
from bench.train import compressing, networks, saving
from oarlock import train
from oarlock.train.compression import dgc, powersgd

SCRIPT = Path(__file__).parents[1] / "scripts" / "gpu.py"
ROUNDS, STEPS, PORT, LIMIT_S = 3, 6, 29_551, 240.0
GROUPS = {
    "NCCL": ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}, True),
    "shares of a GPU (gloo)": ({"OARLOCK_GPU_FRACTION": "0.4", "LOCAL_WORLD_SIZE": "2"}, False),
}
METHODS = ("allreduce", "bf16", "powersgd", "dgc", "ps")
MLP = [shape for _ in range(4) for shape in ((1256, 1256), (1256,))]


def run() -> list[table.Row]:
    return [row for rows in parts() for row in rows]


def parts() -> Iterator[list[table.Row]]:
    """Yield the rows of one measurement after the other."""
    device, card = torch.device("cuda"), torch.cuda.get_device_name()
    for name, shapes in (("25 MB MLP", MLP), ("ResNet-50's shapes", networks.shapes(networks.resnet50()))):
        made = dgc.DeepGradientCompression(train.DGC(warm_up_steps=0))
        yield [_compression(card, device, "DGC", made, name, shapes)]
    low = powersgd.LowRank(train.PowerSGD(rank=1))
    yield [_compression(card, device, "PowerSGD, rank 1", low, "25 MB MLP", MLP)]
    for megabytes in (25, 1000):
        yield [_stall(card, device, megabytes)]
    yield [_logging(card, device)]
    for group in GROUPS:
        yield _against_ddp(card, group)


def _compression(
    card: str, device: torch.device, method: str, made: Any, name: str, shapes: Sequence[tuple[int, ...]]
) -> table.Row:
    took = compressing.work(made, shapes, device, 25, _timed)
    size = compressing.size(shapes)
    work = [seconds * 1e3 * 25e6 / size for seconds in took[5:]]
    what = f"{method}'s own work per 25 MB on a GPU, {name}"
    detail = f"{card}; {table.spread(work, 'ms')}; {size / 1e6:.0f} MB of gradients in {len(shapes)} tensors"
    return table.Row("gpu", what, table.median(work), "ms", detail=detail)


def _timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _stall(card: str, device: torch.device, megabytes: int) -> table.Row:
    """Return how long a training stands still for a checkpoint, against a save that waits for the disk."""
    layers = 4 if megabytes < 100 else 40
    width = int((megabytes * 1e6 / 4 / layers) ** 0.5)
    state = {"model": nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).to(device).state_dict()}
    per_25_mb = 25e6 / sum(each.numel() * each.element_size() for each in state["model"].values())
    stalls, _, waits = saving.measured(state, device, 5)
    stall = table.median(stalls[1:]) * per_25_mb * 1e3
    detail = (
        f"{card}; n={len(stalls) - 1}, {1e3 * min(stalls[1:]):.1f} to {1e3 * max(stalls[1:]):.1f} ms in all, the first "
        f"{1e3 * stalls[0]:.0f} ms; a save that waits for the disk {1e3 * table.median(waits):.0f} ms"
    )
    return table.Row(
        "gpu", f"stall of a checkpoint of {megabytes:,} MB on a GPU, per 25 MB", stall, "ms", 4.0, detail=detail
    )


def _logging(card: str, device: torch.device) -> table.Row:
    """Return what a line of metrics with a value on the GPU costs the script."""
    loss = torch.ones((), device=device)
    took = []
    with train.Session(total_steps=400, resume=False) as session:
        for _ in session.steps():
            began = time.perf_counter()
            session.log(loss=loss)
            took.append(time.perf_counter() - began)
    cost = [seconds * 1e6 for seconds in took[100:]]
    return table.Row(
        "gpu",
        "`session.log` of a value on a GPU",
        table.median(cost),
        "us",
        detail=f"{card}; {table.spread(cost, 'us')}",
    )


def _against_ddp(card: str, group: str) -> list[table.Row]:
    env, hosts = GROUPS[group]
    took = _ranks(env, hosts=hosts)
    rows = []
    for method in METHODS:
        ours = table.median(took[method])
        detail = (
            f"{card}; a step takes {1e3 * ours:.1f} ms ({table.spread([1e3 * one for one in took[method]], 'ms')}), "
            f"with DDP {1e3 * table.median(took['ddp']):.1f} ms"
        )
        what = f"{method}, 105 MB, two ranks, {group}, times as fast as DDP"
        rows.append(table.Row("gpu", what, table.median(took["ddp"]) / ours, "x", detail=detail))
    return rows


def _ranks(env: dict[str, str], *, hosts: bool) -> dict[str, list[float]]:
    """Run two ranks, and return the seconds of the steps of rank 0 by method."""
    bare = {key: value for key, value in os.environ.items() if not key.startswith("OARLOCK_")}
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "4"}
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / str(rank) for rank in (0, 1)]
        ranks = []
        for rank, path in enumerate(said):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)} | env
            if hosts:
                place |= {"NCCL_HOSTID": f"host-{rank}", "OARLOCK_SHARED_MEMORY": "0"}
            with path.open("w") as out, Path(f"{path}-errors").open("w") as wrong:
                command = [sys.executable, str(SCRIPT), str(ROUNDS), str(STEPS), "ddp", *METHODS]
                ranks.append(subprocess.Popen(command, env=bare | common | place, stdout=out, stderr=wrong))
        try:
            codes = [rank.wait(timeout=LIMIT_S) for rank in ranks]
        finally:
            for each in ranks:
                each.kill()
                each.wait()
        if any(codes):
            last = Path(f"{said[0]}-errors").read_text()[-1500:]
            raise RuntimeError(f"the ranks ended with {codes}: {last}")
        seconds: dict[str, list[float]] = json.loads(said[0].read_text().splitlines()[-1])
        return seconds
