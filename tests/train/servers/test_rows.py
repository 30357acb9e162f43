"""Embeddings under parameter servers: rows travel alone, and the weights are those of one process."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.servers import farm
from torch import nn

from oarlock import train
from oarlock.train import errors
from oarlock.train.servers import addresses
from oarlock.train.servers.model import openings, rows, sharding
from oarlock.train.servers.wire import frames, handshake, memory
from oarlock.train.servers.workers import links, remotes, staging
from oarlock.train.strategies import choices

TABLE, COLUMNS, WORDS = 4000, 24, 12
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1},
    "SGD with momentum": {"lr": 0.1, "momentum": 0.9},
    "Adagrad": {"lr": 0.1},
    "SparseAdam": {"lr": 0.01},
}


class Reader(nn.Module):
    """Two tables of words, one of them with bags, and a matrix unless the optimizer takes none."""

    def __init__(self, *, matrix: bool) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.words = nn.Embedding(TABLE, COLUMNS, sparse=True, dtype=torch.float64)
        self.bags = nn.EmbeddingBag(TABLE, COLUMNS, sparse=True, mode="sum", dtype=torch.float64)
        self.out = nn.Linear(COLUMNS, 2, dtype=torch.float64) if matrix else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.words(x).sum(1) + self.bags(x)
        return self.out(both) if self.out is not None else both[:, :2]


def words(step: int, rank: int) -> torch.Tensor:
    """Some words many times, and words that other ranks have, too."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randint(0, TABLE // (1 + 99 * (step % 2)), (8, WORDS), generator=generator)


def taught(kind: str, strategy: Any, ranks: range, steps: int = 6) -> tuple[Reader, int]:
    """Train on the words of these ranks. Return the model, and the bytes sent."""
    name = kind.split()[0]
    model = Reader(matrix=name != "SparseAdam")
    optimizer = getattr(torch.optim, name)(model.parameters(), **OPTIMIZERS[kind])
    attached = train.data_parallel(model, optimizer, strategy=strategy) if strategy is not None else model
    for step in range(steps):
        optimizer.zero_grad()
        loss = sum(attached(words(step, rank)).square().mean() for rank in ranks) / len(ranks)
        loss.backward()
        optimizer.step()
    optimizer.state_dict()
    figures = getattr(strategy, "figures", None)
    return model, figures.sent_bytes if figures is not None else 0


def served(farms: list[str], sync: bool) -> None:
    for kind, servers in zip(OPTIMIZERS, farms, strict=True):
        os.environ[addresses.VARIABLE] = servers
        rank = train.rank()
        strategy = train.ParameterServers(sync=sync)
        model, sent = taught(kind, strategy, range(rank, rank + 1))
        expected, _ = taught(kind, None, range(2))
        for name, value in model.state_dict().items():
            assert torch.allclose(value, expected.state_dict()[name], rtol=1e-9, atol=1e-12), (kind, name)
        assert sent < 6 * 2 * 8 * WORDS * 9 * COLUMNS * 1.5 + 6 * 8 * 2 * (COLUMNS + 1), "rows travel alone"


def test_two_workers_and_two_servers_train_as_one_process(tmp_path: Path) -> None:
    from contextlib import ExitStack

    with ExitStack() as stack:
        farms = [stack.enter_context(farm.running(2)) for _ in OPTIMIZERS]
        env = {addresses.TOKEN: farm.TOKEN, addresses.VARIABLE: ",".join(farms[0].servers)}
        codes = crew.run(served, [",".join(each.servers) for each in farms], True, folder=tmp_path, env=env)
    assert codes == [0, 0], crew.output(tmp_path)


def chosen() -> None:
    model, _ = taught("SGD", "auto", range(train.rank(), train.rank() + 1))
    expected, _ = taught("SGD", None, range(2))
    for name, value in model.state_dict().items():
        assert torch.allclose(value, expected.state_dict()[name], rtol=1e-9, atol=1e-12), name


def reader() -> tuple[Reader, torch.optim.SGD]:
    model = Reader(matrix=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train.data_parallel(model, optimizer)
    return model, optimizer


def passed(model: Reader, step: int) -> None:
    model.zero_grad()
    model(words(step, train.rank())).square().mean().backward()


def clipped() -> None:
    """Change the gradients of a late step, after one that was passed over."""
    model, optimizer = reader()
    assert model.out is not None
    for step in range(15):
        passed(model, step)
        if step != 7:
            optimizer.step()
    passed(model, 15)
    assert model.out.weight.grad is not None
    model.out.weight.grad.mul_(0.5)
    with pytest.raises(errors.StateError, match="because its gradients are sparse"):
        optimizer.step()
    os._exit(0)  # the other one has the same error


def frozen() -> None:
    """A table that is not trained has no gradient, so nothing is sent by row."""
    model = Reader(matrix=True)
    for table in (model.words, model.bags):
        table.weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # type: ignore[arg-type]  # it takes none without a gradient
    train.data_parallel(model, optimizer)
    for step in range(3):
        passed(model, step)
        assert model.out is not None
        nn.utils.clip_grad_norm_(model.out.parameters(), 1e-3)
        optimizer.step()


@pytest.mark.parametrize("work", [chosen, clipped, frozen])
def test_auto_uses_servers_for_sparse_gradients(work: Callable[[], None], tmp_path: Path) -> None:
    """No other strategy exchanges them."""
    with farm.running(2) as servers:
        env = {addresses.TOKEN: farm.TOKEN, addresses.VARIABLE: ",".join(servers.servers)}
        codes = crew.run(work, folder=tmp_path, env=env)
    assert codes == [0, 0], crew.output(tmp_path)


def test_auto_never_takes_the_settings_that_change_the_result(tmp_path: Path) -> None:
    """Those of a script whose strategy the job file has replaced."""
    with farm.running(1) as servers:
        env = {addresses.TOKEN: farm.TOKEN, addresses.VARIABLE: ",".join(servers.servers)}
        codes = crew.run(in_step, folder=tmp_path, env={**env, choices.VARIABLE: '{"kind": "auto"}'})
    assert codes == [0, 0], crew.output(tmp_path)


def in_step() -> None:
    model, _ = taught("SGD", train.ParameterServers(sync=False, staleness=3), range(train.rank(), train.rank() + 1))
    expected, _ = taught("SGD", None, range(2))
    for name, value in model.state_dict().items():
        assert torch.allclose(value, expected.state_dict()[name], rtol=1e-9, atol=1e-12), name


def test_one_process_exchanges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(addresses.VARIABLE, "127.0.0.1:9")  # where nobody answers
    monkeypatch.setenv(addresses.TOKEN, farm.TOKEN)
    model, optimizer = reader()
    before = model.words.weight.detach().clone()
    passed(model, 0)
    optimizer.step()
    assert not torch.equal(model.words.weight, before)


OPENING = openings.Opening(
    (openings.Piece("table", 0, (10, 2), "float32", 0, True), openings.Piece("bias", 0, (3,), "float32", 0)),
    "SGD",
    openings.Mode(2, sync=False),
)
SETTINGS = [{"lr": 1.0}]


def worker(servers: addresses.Addresses, rank: int) -> links.Link:
    link = links.Link(servers, 0, handshake.Place(rank, 2, 1, "step"))
    link.open(OPENING.fields())
    return link


def stepped(link: links.Link, base: int, numbers: list[int], told: Any = None, value: float = 1.0) -> dict[str, Any]:
    """Push a gradient of these rows; return the numbers of the changed rows and their first values."""
    gradient = rows.Rows(torch.tensor(numbers), torch.full((len(numbers), 2), value))
    bias = torch.zeros(3)
    fields = {"base": base, "number": 0, "absent": [], "settings": SETTINGS, "wish": 0}
    fields["rows"] = {"0": len(numbers)} if told is None else told
    link.start(frames.Kind.STEP, fields, [*gradient.views(), memory.view(bias)])
    changed: list[rows.Rows] = []

    def into(head: frames.Head) -> list[memoryview]:
        changed.extend(rows.expected(head.fields["rows"], {0: (torch.float32, (10, 2))}).values())
        return [*changed[0].views(), memory.view(bias)]

    answer = link.finish(into)
    return {
        "version": answer["version"],
        **dict(torch.column_stack([changed[0].numbers, changed[0].values[:, 0]]).tolist()),
    }


def test_an_answer_has_the_rows_that_anyone_has_changed_since() -> None:
    with farm.running() as servers:
        ours, theirs = worker(servers, 0), worker(servers, 1)
        weights = torch.zeros(23)
        ours.ask(frames.Kind.LOAD, {"version": 0, "settings": SETTINGS}, [memory.view(weights)])
        assert stepped(ours, 0, [1, 4]) == {"version": 1, 1: -1.0, 4: -1.0}
        assert stepped(ours, 1, [4, 9]) == {"version": 2, 4: -2.0, 9: -1.0}
        assert stepped(theirs, 0, [0]) == {"version": 3, 0: -1.0, 1: -1.0, 4: -2.0, 9: -1.0}
        assert stepped(ours, 2, []) == {"version": 4, 0: -1.0}
        ours.close()
        theirs.close()


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([3, 3], None),
        ([4, 3], None),
        ([-1, 3], None),
        ([3, 10], None),
        ([1], {"0": -1}),
        ([1], {"0": 1 << 60}),
        ([1], {"0": 2}),
        ([1], {"0": True}),
        ([1], {"1": 1}),
        ([1], {"7": 1}),
        ([1], {}),
        ([1], {"no number": 1}),
        ([1], [1]),
    ],
)
def test_rows_that_are_not_there_are_refused(numbers: list[int], told: Any) -> None:
    with farm.running() as servers:
        link = worker(servers, 0)
        weights = torch.zeros(23)
        link.ask(frames.Kind.LOAD, {"version": 0, "settings": SETTINGS}, [memory.view(weights)])
        with pytest.raises(errors.ServerError):
            stepped(link, 0, numbers, told)
        link.close()
        again = worker(servers, 0)
        assert stepped(again, 0, [2]) == {"version": 1, 2: -1.0}
        again.close()


def test_a_dense_gradient_of_a_table_has_all_rows() -> None:
    found = rows.of(torch.arange(12.0).view(6, 2), 2, 5)
    assert found.numbers.tolist() == [0, 1, 2]
    assert found.values.tolist() == [[4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]
    with pytest.raises(errors.StateError, match="sparse=False"):
        staging.at_hand(torch.eye(3).to_sparse())


APART = openings.Mode(2, sync=False)


def remote(
    servers: addresses.Addresses, rank: int, mode: openings.Mode = APART
) -> tuple[remotes.Remote, nn.Embedding, torch.optim.SGD]:
    table = nn.Embedding(10, 2, sparse=True)
    nn.init.zeros_(table.weight)
    tensors = [sharding.Tensor("table", (10, 2), "float32", 4, 0, 2)]
    parts = sharding.divide(tensors, 1, "partition")[0]
    opening = openings.Opening(remotes.pieces(parts, tensors), "SGD", mode)
    link = links.Link(servers, 0, handshake.Place(rank, 2, 1, "step", round=int(mode.rounds)))
    made = remotes.Remote(link, rank, parts, tensors, [("table", table.weight)], opening)
    made.open()
    made.recovers = True
    return made, table, torch.optim.SGD(table.parameters(), lr=1.0)


def pushed(one: remotes.Remote, row: int) -> None:
    gradient = torch.sparse_coo_tensor([[row]], torch.ones(1, 2), (10, 2), is_coalesced=True, check_invariants=False)
    one.push([gradient], SETTINGS, 0)
    one.take()


def test_rows_of_a_lost_branch_do_not_stay_in_a_worker() -> None:
    """A worker comes back to a new server late: others have gone on there, from older weights."""
    with farm.running() as before, farm.running() as after:
        (late, its_table, optimizer), (other, table, _) = remote(before, 0), remote(before, 1)
        late.load(SETTINGS, optimizer)
        pushed(late, 1)
        pushed(late, 2)
        for one in (other, late):
            one.link._servers = after
        other.link._connection.close()
        for _ in range(3):
            pushed(other, 5)
        late.link._connection.close()
        pushed(late, 7)
        pushed(other, 8)
        expected = torch.zeros(10, 2)
        expected[5], expected[7] = -3, -1
        assert torch.equal(its_table.weight, expected)
        expected[8] = -1
        assert torch.equal(table.weight, expected)
        pushed(late, 9)
        assert late._changed[0].numbers.tolist() == [8, 9], "all rows come once"
        late.link.close()
        other.link.close()


@pytest.mark.parametrize("dies", [False, True], ids=["", "the server dies"])
def test_an_update_that_waits_until_all_servers_have_the_gradients(dies: bool) -> None:
    """Only the rows that it changes come back. A new server needs the gradients again."""
    with farm.running() as before, farm.running() as after:
        both = [remote(before, rank, openings.Mode(1, rounds=True)) for rank in range(2)]
        both[0][0].load(SETTINGS, both[0][2])
        for step in range(2):
            for number, (one, _, _) in enumerate(both):
                rows_of = [[2 * step + number]]
                gradient = torch.sparse_coo_tensor(
                    rows_of, torch.ones(1, 2), (10, 2), is_coalesced=True, check_invariants=False
                )
                one.push([gradient], SETTINGS, 0, hold=True)
            for one, _, _ in both:
                one.agree()
            if dies and step:
                for one, _, _ in both:
                    one.link._servers = after
                    one.link._connection.close()
            for one, _, _ in both:
                one.commit()
            for taken in [farm.aside(one.take) for one, _, _ in both]:
                taken.result(60)
        expected = torch.zeros(10, 2)
        expected[:4] = -0.5
        for one, table, _ in both:
            assert torch.equal(table.weight, expected)
            assert len(one._changed[0].numbers) == (10 if dies else 2)
            one.link.close()


ROWS, WIDTH = 1 << 18, 64


def large(folder: Path) -> None:
    """Train with a table of 64 MB, of which each step needs some rows. Then wait until the test has looked."""
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH, sparse=True), nn.Linear(WIDTH, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train.data_parallel(model, optimizer, strategy=train.ParameterServers(sync=True))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.arange(8)).square().mean().backward()
        optimizer.step()
    (folder / f"trained-{train.rank()}").touch()
    while not (folder / "looked").exists():
        time.sleep(0.01)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_server_holds_a_table_once(tmp_path: Path) -> None:
    """A table may be as large as the server's memory, and each worker would add several to it."""
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer imports a hundred megabytes
    before = resident_bytes()
    with farm.running() as servers, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(crew.run, large, tmp_path, folder=tmp_path, env=farm.variables(servers))
        while not ended.done() and len(list(tmp_path.glob("trained-*"))) < 2:
            time.sleep(0.01)
        held = resident_bytes() - before
        (tmp_path / "looked").touch()
        assert ended.result() == [0, 0], crew.output(tmp_path)
    assert held < 4 * ROWS * WIDTH * 4, "with copies for each worker it would be seven times"
