"""The world of a process, from the variables of torchrun or Oarlock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests import needs
from tests.train import crew

from oarlock import train
from oarlock.train import environment, errors, worlds


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    worlds.shutdown()
    yield
    worlds.shutdown()


def test_alone_there_is_a_world_of_one_and_no_process_group() -> None:
    ours = train.init()
    assert (ours.rank, ours.world_size, ours.local_rank, ours.is_chief) == (0, 1, 0, True)
    assert train.init() is ours
    assert (train.rank(), train.world_size(), train.is_chief(), train.device()) == (0, 1, True, ours.device)
    assert not torch.distributed.is_initialized()
    assert ours.gather("x") == ["x"]
    assert ours.start_largest((3, 1))() == [3, 1]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE, MASTER_ADDR, MASTER_PORT missing"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x"}, "MASTER_PORT missing"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}, "RANK=2 is not one of WORLD_SIZE=2"),
    ],
)
def test_half_an_address_is_an_error_that_names_the_missing_part(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.WorldError, match=message):
        train.init()


def test_a_device_that_is_not_there_is_an_error() -> None:
    if torch.cuda.is_available():
        needs.skip("no GPU")
    with pytest.raises(errors.WorldError, match="torch sees no GPU"):
        train.init(device="cuda")
    assert train.init(device="cpu").device == torch.device("cpu")


def exchange() -> None:
    ours = train.init()
    assert train.init() is ours
    assert torch.distributed.get_backend() == "gloo"
    assert ours.gather({"rank": ours.rank}) == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    assert ours.start_largest((ours.rank, -ours.rank, 1 << 40))() == [2, 0, 1 << 40]
    train.shutdown()
    assert not torch.distributed.is_initialized()


def test_three_ranks_exchange(tmp_path: Path) -> None:
    assert crew.run(exchange, folder=tmp_path, world_size=3) == [0, 0, 0], crew.output(tmp_path, 3)


ENDS = """
import atexit, pathlib, sys, time
import torch
def threads():
    return [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")].count("pt_gloo_runloop\\n")
def tell():
    print("joined" if torch.distributed.is_initialized() else "left", threads())
atexit.register(tell)  # asked last
from oarlock import train
world, ended = train.init(), pathlib.Path("ended")
while threads() < 4:  # they have their names a moment after they have begun
    time.sleep(0.01)
if "nccl" in sys.argv:
    torch.distributed.get_backend = lambda: "nccl"
world.gather(world.rank)
if "together" in sys.argv:
    model = train.data_parallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters())  # brings in what may hold on to the group
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
if "alone" in sys.argv:
    try:
        with train.Session():
            if world.rank == 1:
                world.start_largest((1,))
                raise ValueError("before its peers took part")
    except ValueError:
        ended.touch()
        sys.exit(3)
    until = time.monotonic() + 240
    while not ended.exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(2)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        pytest.param(["together"], [(0, "left 0"), (0, "left 0")], marks=pytest.mark.long),
        pytest.param(["alone"], [(0, "left 0"), (3, "joined 4")], marks=pytest.mark.long),
        pytest.param(["nccl"], [(0, "joined 2"), (0, "joined 2")], marks=pytest.mark.long),
    ],
    ids=["together", "alone", "nccl"],
)
def test_a_script_that_ends_leaves_its_peers_but_waits_for_none(
    tmp_path: Path, how: list[str], said: list[tuple[int, str]]
) -> None:
    """Else a thread that lets go of a tensor too late aborts one process in some hundred."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(crew.free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ENDS, *how],
            cwd=tmp_path,
            env={**os.environ, **address, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ended = [(rank.communicate(timeout=280)[0].strip(), rank.returncode) for rank in reversed(ranks)]
    finally:
        for rank in ranks:
            rank.kill()
    assert [(code, text) for text, code in reversed(ended)] == said


def test_importing_the_library_costs_nothing() -> None:
    code = "import sys, oarlock.train; print([m for m in sys.modules if m.startswith(('torch', 'oarlock'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=280)
    assert done.stdout.strip() == "['oarlock', 'oarlock.train']"


def test_every_public_name_is_there() -> None:
    for name in train.__all__:
        assert getattr(train, name) is not None
    assert set(train.__all__) <= set(dir(train))
    with pytest.raises(AttributeError, match="has no 'inti'"):
        _ = train.inti


class OneGpu:
    """The calls of torch that `init` makes on a machine with one device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bounded: list[tuple[float, torch.device]] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
        monkeypatch.setattr(
            torch.cuda, "set_per_process_memory_fraction", lambda part, device: self.bounded.append((part, device))
        )


def test_a_device_with_a_number_is_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that says "cuda" means the device of the process then, as it does without a number."""
    OneGpu(monkeypatch)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert train.init(device="cuda:1").device == torch.device("cuda:1")
    assert chosen == [torch.device("cuda:1")]
    worlds.shutdown()
    with pytest.raises(errors.WorldError, match="'cuda:2' was asked for, but torch sees 2 GPUs"):
        train.init(device="cuda:2")


def test_memory_is_bounded_on_a_shared_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = OneGpu(monkeypatch)
    for told in ("", "1", "0", "-0.5", "much"):
        monkeypatch.setenv("OARLOCK_GPU_FRACTION", told)
        train.init()
        worlds.shutdown()
    assert gpu.bounded == []
    monkeypatch.setenv("OARLOCK_GPU_FRACTION", "0.25")
    train.init()
    assert gpu.bounded == [(0.25, torch.device("cuda", 0))]


def test_processes_of_one_share_are_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a share, a second process on a host with one device has none of its own."""
    OneGpu(monkeypatch)
    monkeypatch.setattr(worlds, "_world", None)  # at the end it is as it was before: no other test is in this world
    joined: list[str | None] = []
    monkeypatch.setattr(worlds, "_join", lambda rank, size, backend, *rest: joined.append(backend))
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.WorldError, match="no GPU of its own"):
        train.init()
    monkeypatch.setenv("OARLOCK_GPU_FRACTION", "0.5")
    assert train.init().device == torch.device("cuda", 0)
    assert joined == ["gloo"], "NCCL refuses two processes on one device"


def test_a_strategy_says_that_it_is_done_before_the_process_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(worlds, "leaving", [lambda: order.append("strategy")])
    monkeypatch.setattr(worlds, "exchanges", SimpleNamespace(close=lambda: order.append("exchanges")))
    worlds.shutdown()
    worlds.shutdown()
    assert order == ["strategy", "exchanges"]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "290000 100000\n"}, 2),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu.max": "nonsense\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    ],
)
def test_a_container_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert environment.cores(tmp_path) == cores


@pytest.mark.parametrize(("processes", "limit", "threads"), [(1, 2, 2), (1, 64, 4), (2, 64, 32), (2, 3, 1)])
def test_a_process_computes_with_the_cores_of_its_container(
    monkeypatch: pytest.MonkeyPatch, processes: int, limit: int, threads: int
) -> None:
    chosen = [4]
    monkeypatch.setattr(environment, "cores", lambda: limit)
    monkeypatch.setattr(torch, "get_num_threads", lambda: chosen[-1])
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    train.init()
    assert chosen[-1] == threads
