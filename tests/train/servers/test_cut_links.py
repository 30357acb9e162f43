"""Links between workers and parameter servers that are cut without a word of the kernel, and healed."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.train import links
from tests.train import crew
from tests.train import machines as miniature
from tests.train.servers import farm, test_server_deaths
from torch import nn

from oarlock import train
from oarlock.train import silence
from oarlock.train.servers import addresses
from oarlock.train.servers.wire import frames, transport

SOON_S = 1.5
FEW = 2
STEPS = 30


@pytest.fixture
def machines() -> Iterator[tuple[links.Machine, ...]]:
    with miniature.linked() as found:
        yield found


def there(machine: links.Machine, make: Callable[[], Any]) -> Any:
    """Make a socket on this machine, which stays there."""

    def inside() -> Any:
        miniature.enter(machine)
        return make()

    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(inside).result()


@pytest.mark.parametrize("what", ["a gradient on its way", "an answer that is awaited"])
def test_a_host_that_vanished_is_noticed_while_bytes_are_on_their_way(
    machines: tuple[links.Machine, ...], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel alone would send them again for 15 minutes, and probe an idle connection only."""
    monkeypatch.setattr(transport, "SILENT_S", SOON_S)
    monkeypatch.setattr(silence, "UNANSWERED", FEW)
    near, far = machines
    listener = there(far, lambda: socket.create_server((far.address, 0)))
    near_end = transport.Tcp(there(near, lambda: socket.create_connection(listener.getsockname()[:2])))
    far_end = transport.Tcp(listener.accept()[0])
    near_end.send(frames.Kind.PULL, {})
    assert far_end.head().kind is frames.Kind.PULL
    miniature.put(far, up=False)

    def speak() -> None:
        near_end.send(frames.Kind.STEP, {}, [memoryview(bytearray(64 << 20 if "gradient" in what else 8))])
        near_end.head()

    with futures.ThreadPoolExecutor(1) as pool:
        spoken = pool.submit(speak)
        try:
            with pytest.raises(OSError, match="timed out"):
                spoken.result(timeout=60)
        finally:
            near_end.close()
            far_end.close()
            listener.close()


def test_a_peer_that_reads_nothing_is_no_host_that_vanished(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been stopped: its kernel acknowledges, and takes no more than its buffer holds."""
    monkeypatch.setattr(transport, "SILENT_S", SOON_S)
    monkeypatch.setattr(silence, "UNANSWERED", FEW)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near_end = transport.Tcp(socket.create_connection(listener.getsockname()))
        far_end = transport.Tcp(listener.accept()[0])
    body = memoryview(bytearray(64 << 20))
    with contextlib.closing(near_end), contextlib.closing(far_end), futures.ThreadPoolExecutor(1) as pool:
        sent = pool.submit(near_end.send, frames.Kind.STEP, {}, [body])
        time.sleep(4 * SOON_S)
        assert not sent.done(), "the peer has read nothing"
        assert far_end.head().body_bytes == body.nbytes
        far_end.body([body])
        sent.result(timeout=60)


def serve_there(machine: links.Machine, environ: dict[str, str], log: Path) -> None:
    miniature.enter(machine)
    transport.SILENT_S, silence.UNANSWERED = SOON_S, FEW
    test_server_deaths.serve(environ, log)


def learn(folder: Path, where: tuple[links.Machine, ...] | None, ballast: int, settings: dict[str, Any]) -> None:
    if where is not None:
        miniature.enter(where[int(os.environ["RANK"])])
        transport.SILENT_S, silence.UNANSWERED = SOON_S, FEW
    world = train.init()
    model = nn.ModuleDict({"net": test_server_deaths.net(), "ballast": nn.Linear(ballast, 1).double()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    strategy = train.ParameterServers(**settings)
    train.data_parallel(model, optimizer, strategy=strategy)
    with train.Session(model=model, optimizer=optimizer, total_steps=STEPS) as session:
        for step in session.steps():
            (folder / f"step-{world.rank}-{step}").touch()
            if step == STEPS - 5 and where is not None:
                test_server_deaths.wait_for(folder / "healed")
            generator = torch.Generator().manual_seed(10 * step + world.rank)
            x = torch.randn(4, 6, generator=generator).double()
            optimizer.zero_grad()
            (model["net"](x).square().sum() + 1e-3 * model["ballast"](torch.ones(ballast).double()).sum()).backward()
            optimizer.step()
    torch.save(model.state_dict(), folder / f"taught-{world.rank}.pt")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("settings", [{}, {"sync": False}], ids=["lockstep", "asynchronous"])
@pytest.mark.parametrize("ballast", [1, 500_000], ids=["small", "large"])
def test_a_worker_goes_on_when_its_link_is_healed(
    machines: tuple[links.Machine, ...], ballast: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    """It was given up meanwhile, and comes back. In lockstep the weights are those of an undisturbed run."""
    near, far = machines
    told = addresses.Addresses((f"{near.address}:7311", f"{near.address}:7312"), farm.TOKEN)
    env = {**farm.variables(told), "OARLOCK_SHARED_MEMORY": "0"}
    servers = []
    for address in told.servers:
        args = (near, {**env, "OARLOCK_SERVER": address}, tmp_path / "servers.txt")
        servers.append(crew._CONTEXT.Process(target=serve_there, args=args))
        servers[-1].start()

    def pester() -> None:
        test_server_deaths.wait_for(tmp_path / "step-1-5")
        miniature.put(far, up=False)
        time.sleep(4 * SOON_S)
        miniature.put(far, up=True)
        (tmp_path / "healed").touch()

    thread = threading.Thread(target=pester, daemon=True)
    thread.start()
    try:
        args = (tmp_path, machines, ballast, settings)
        codes = crew.run(learn, *args, folder=tmp_path, env=env, timeout_s=240)
    finally:
        for server in servers:
            server.kill()
            server.join()
    said = crew.output(tmp_path) + (tmp_path / "servers.txt").read_text()
    assert codes == [0, 0], said
    thread.join()
    first, second = (torch.load(tmp_path / f"taught-{rank}.pt", weights_only=True) for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    if settings:
        return
    calm = tmp_path / "calm"
    calm.mkdir()
    with farm.running(2) as undisturbed:
        args = (calm, None, ballast, settings)
        assert crew.run(learn, *args, folder=calm, env=farm.variables(undisturbed)) == [0, 0], crew.output(calm)
    expected = torch.load(calm / "taught-0.pt", weights_only=True)
    assert all(torch.equal(first[name], expected[name]) for name in first), "a step was lost"
