"""Shared memory between processes of one host: found safely, bounded, and gone with its processes."""

from __future__ import annotations

import mmap
import os
import random
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.servers import farm
from torch import nn

from oarlock.train import errors
from oarlock.train.servers import addresses
from oarlock.train.servers.model import openings, rows, sharding
from oarlock.train.servers.wire import bodies, frames, handshake, memory, transport
from oarlock.train.servers.workers import links, remotes
from oarlock.train.sharing import segments

Kind = frames.Kind
SIZE = 50_000
SETTINGS = [{"lr": 0.5}]
OPENING = openings.Opening(
    (openings.Piece("first", 0, (SIZE,), "float32", 0), openings.Piece("second", 0, (SIZE,), "float32", 0)),
    "SGD",
    openings.Mode(1),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test in the place of /dev/shm."""
    made = tmp_path / "shm"
    made.mkdir()
    monkeypatch.setattr(segments, "FOLDER", made)
    return made


@pytest.fixture
def servers() -> Iterator[addresses.Addresses]:
    with farm.running() as one:
        yield one


def opened(servers: addresses.Addresses) -> links.Link:
    link = links.Link(servers, 0, handshake.Place(0, 1, 1, "step"))
    link.open(OPENING.fields())
    weights = [torch.zeros(SIZE), torch.ones(SIZE)]
    link.ask(Kind.LOAD, {"version": 0, "settings": SETTINGS}, [memory.view(each) for each in weights])
    return link


def step(link: links.Link, gradients: list[torch.Tensor | None], base: int = 0) -> list[torch.Tensor]:
    """Make an update, and return the weights after it."""
    absent = [number for number, each in enumerate(gradients) if each is None]
    fields = {"base": base, "number": 0, "absent": absent, "settings": SETTINGS, "wish": 0}
    link.start(Kind.STEP, fields, [memory.view(each) for each in gradients if each is not None])
    weights = [torch.empty(SIZE), torch.empty(SIZE)]
    shown = link.finish(lambda head: () if head.fields["shown"] else [memory.view(each) for each in weights])["shown"]
    return [each.clone() for each in link.weights(weights)] if shown else weights


def shares(link: links.Link) -> bool:
    return isinstance(link._connection, bodies.Shared)


def updated(link: links.Link) -> None:
    """Two updates, the second without a gradient of the first tensor."""
    first, second = torch.arange(SIZE, dtype=torch.float32), torch.full((SIZE,), 4.0)
    weights = step(link, [first, second])
    assert torch.equal(weights[0], -first / 2)
    assert weights[1].unique().tolist() == [-1.0]
    weights = step(link, [None, second], base=1)
    assert torch.equal(weights[0], -first / 2)
    assert weights[1].unique().tolist() == [-3.0]


def test_bodies_go_by_shared_memory_and_leave_no_name(servers: addresses.Addresses, folder: Path) -> None:
    link = opened(servers)
    assert shares(link)
    assert list(folder.iterdir()) == []
    updated(link)
    link.open(OPENING.fields())  # a second session
    assert shares(link)
    zeros = torch.zeros(2 * SIZE)
    link.ask(Kind.LOAD, {"version": 0, "settings": SETTINGS}, [memory.view(zeros)])
    assert [each.sum().item() for each in step(link, [torch.zeros(SIZE), torch.zeros(SIZE)])] == [0.0, 0.0]
    link.close()


def worker(servers: addresses.Addresses, rank: int, mode: openings.Mode) -> links.Link:
    link = links.Link(servers, 0, handshake.Place(rank, mode.workers, 1, "step"))
    link.open(openings.Opening(OPENING.pieces, "SGD", mode).fields())
    return link


def pulled(link: links.Link) -> tuple[bool, list[torch.Tensor]]:
    """Return whether the server shows its weights, and the weights: its own memory where it does."""
    link.start(Kind.PULL, {})
    weights = [torch.empty(SIZE), torch.empty(SIZE)]
    told = link.finish(lambda head: () if head.fields["shown"] else [memory.view(each) for each in weights])
    return told["shown"], link.weights(weights) if told["shown"] else weights


def load(link: links.Link, value: float) -> None:
    weights = torch.full((2 * SIZE,), value)
    link.ask(Kind.LOAD, {"version": 0, "settings": SETTINGS}, [memory.view(weights)])


def values(weights: list[torch.Tensor]) -> list[float]:
    return torch.cat(weights).unique().tolist()


def test_workers_in_lockstep_read_the_weights_in_the_servers_memory(servers: addresses.Addresses, folder: Path) -> None:
    one = worker(servers, 0, openings.Mode(2))
    load(one, 1.0)
    assert not pulled(one)[0]  # the other one has not come yet
    other = worker(servers, 1, openings.Mode(2))
    assert list(folder.iterdir()) == []
    (shown, ours), (also, theirs) = pulled(one), pulled(other)
    assert (shown, also) == (True, True)
    assert values(ours) == values(theirs) == [1.0]
    gradient = torch.ones(2 * SIZE)
    for link in (one, other):
        fields = {"base": 0, "number": 0, "absent": [], "settings": SETTINGS, "wish": 0}
        link.start(Kind.STEP, fields, [memory.view(gradient)])
    for link in (one, other):
        told = link.finish()
        assert (told["shown"], told["version"]) == (True, 1)
    assert values(ours) == values(theirs) == [0.5]
    one.close()
    other.close()


@pytest.mark.parametrize("mode", [openings.Mode(2, backup=1), openings.Mode(2, sync=False)])
def test_a_worker_that_others_do_not_wait_for_gets_a_copy(servers: addresses.Addresses, mode: openings.Mode) -> None:
    both = [worker(servers, rank, mode) for rank in range(2)]
    assert all(shares(link) for link in both)
    load(both[0], 1.0)
    assert [pulled(link)[0] for link in both] == [False, False]
    for link in both:
        link.close()


@pytest.mark.parametrize("why", ["left", "loaded"])
def test_weights_that_a_worker_may_be_reading_do_not_change(servers: addresses.Addresses, why: str) -> None:
    """A worker that counts as gone may live on, and copy weights while the others make the next update."""
    one, other = (worker(servers, rank, openings.Mode(2)) for rank in range(2))
    load(one, 1.0)
    reads, weights = pulled(other)
    assert reads
    if why == "left":
        other.ask(Kind.DONE, {"wish": 0, "wait": False})
        assert values(step(one, [torch.ones(SIZE), torch.ones(SIZE)])) == [0.5]
    else:
        load(one, 3.0)
        shown, loaded = pulled(one)
        assert not shown
        assert values(loaded) == [3.0]
    assert values(weights) == [1.0]
    one.close()
    other.close()


def test_a_worker_that_died_reads_the_weights_that_it_was_shown(servers: addresses.Addresses) -> None:
    """It may live on unseen. Its successor gets copies, and the others go on with copies."""
    one, other = (worker(servers, rank, openings.Mode(2)) for rank in range(2))
    load(one, 1.0)
    one.ask(Kind.BEGIN, {"step": 0})
    assert pulled(one)[0]
    shown, weights = pulled(other)
    assert shown
    successor = links.Link(servers, 0, handshake.Place(1, 2, 2, "step"))
    successor.open(openings.Opening(OPENING.pieces, "SGD", openings.Mode(2)).fields())
    shown, copies = pulled(successor)
    assert not shown
    assert values(copies) == [1.0]
    with ThreadPoolExecutor(2) as both:
        gradient = torch.ones(SIZE)
        for made in [both.submit(step, link, [gradient, gradient]) for link in (one, successor)]:
            assert values(made.result()) == [0.5]
    assert values(weights) == [1.0]
    for link in (one, other, successor):
        link.close()


def test_a_worker_that_opens_anew_gets_copies(servers: addresses.Addresses) -> None:
    link = opened(servers)
    assert pulled(link)[0]
    link.open(OPENING.fields())
    shown, weights = pulled(link)
    assert not shown
    assert torch.cat(weights).sum().item() == SIZE
    with pytest.raises(links.Lost, match="does not see them"):
        link.weights(weights)
    link.close()


@pytest.mark.parametrize("shared", [True, False])
def test_bytes_that_go_by_memory_are_not_on_the_wire(
    servers: addresses.Addresses, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setenv("OARLOCK_SHARED_MEMORY", str(int(shared)))
    parameter = nn.Parameter(torch.zeros(SIZE))
    tensors = [sharding.Tensor("first", (SIZE,), "float32", 4, 0)]
    parts = sharding.divide(tensors, 1, "partition")[0]
    opening = openings.Opening(remotes.pieces(parts, tensors), "SGD", openings.Mode(1))
    link = links.Link(servers, 0, handshake.Place(0, 1, 1, "step"))
    remote = remotes.Remote(link, 0, parts, tensors, [("first", parameter)], opening)
    remote.open()
    remote.load(SETTINGS, torch.optim.SGD([parameter], lr=0.5))
    assert remote.push([torch.ones(SIZE)], SETTINGS, 0) == (0 if shared else 4 * SIZE)
    remote.take()
    assert parameter.unique().tolist() == [-0.5]
    link.close()


@pytest.mark.parametrize(
    "why", ["no folder", "other folder", "full", "little left", "secret", "reserve", "small model", "off"]
)
def test_the_socket_serves_where_memory_cannot_be_shared(
    why: str, servers: addresses.Addresses, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "no folder":
        folder.rmdir()
    elif why == "other folder":  # two processes that see different files
        monkeypatch.setattr(segments.Opened, "__init__", refuses(FileNotFoundError("it is not here")))
    elif why == "full":
        monkeypatch.setattr(segments, "_PART", 1 << 60)
    elif why == "little left":
        monkeypatch.setattr(segments, "_LEFT_BYTES", 1 << 60)
    elif why == "off":
        monkeypatch.setenv("OARLOCK_SHARED_MEMORY", "0")
    elif why == "secret":
        monkeypatch.setattr(segments.Offer, "reserve", lambda offer: None)  # not reached
        monkeypatch.setattr(segments.os, "pread", lambda *_: b"another secret")
    elif why == "reserve":
        monkeypatch.setattr(segments.os, "posix_fallocate", refuses(OSError(28, "No space left on device")))
    else:
        monkeypatch.setattr(bodies, "LEAST_BYTES", 8 * SIZE + 1)
    link = opened(servers)
    assert not shares(link)
    updated(link)
    assert not folder.exists() or list(folder.iterdir()) == []
    link.close()


def refuses(cause: OSError) -> Any:
    def refuse(*_: object) -> None:
        raise cause

    return refuse


def test_a_body_in_memory_that_is_not_shared_or_not_there_is_refused(servers: addresses.Addresses) -> None:
    links_of = [links.Link(servers, 0, handshake.Place(0, 1, 1, "step")), opened(servers)]
    for link, size in zip(links_of, (8 * SIZE, 8 * SIZE + 1), strict=True):
        assert shares(link) == (link is links_of[1])
        link._socket.announce(Kind.STEP, {}, size)
        with pytest.raises(errors.ServerError, match="shared memory"):
            link.finish()
        link.close()
    again = opened(servers)
    updated(again)
    again.close()


@pytest.fixture
def both() -> Iterator[tuple[bodies.Shared, bodies.Shared]]:
    """Both ends of a connection with shared memory."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    segment = mmap.mmap(-1, 4096)
    one, other = (bodies.Shared(transport.Tcp(each), segment) for each in (ours, theirs))
    yield one, other
    one.close()
    other.close()


def test_pieces_of_the_segment_arrive_whole_wherever_they_lie(
    both: tuple[bodies.Shared, bodies.Shared], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "LEAST_BYTES", 1)
    ours, theirs = both
    draw = random.Random(3)
    for _ in range(200):
        held = ours.tensors([torch.zeros(draw.randrange(0, 40), dtype=torch.uint8) for _ in range(6)])
        pieces = []
        for flat in held:
            flat.copy_(torch.randint(256, flat.shape, dtype=torch.uint8))
            if draw.random() < 0.3:  # the pieces after it move up
                pieces.append(torch.randint(256, (draw.randrange(0, 12),), dtype=torch.uint8))
            if draw.random() < 0.8:  # or down
                pieces.append(flat)
        expected = [each.tolist() for each in pieces]
        ours.send(Kind.OK, {}, [memory.view(each) for each in pieces])
        theirs.head()
        came = [torch.zeros(len(each), dtype=torch.uint8) for each in expected]
        theirs.body([memory.view(each) for each in came])
        assert [each.tolist() for each in came] == expected


def test_rows_beside_dense_pieces_leave_the_dense_ones_as_they_are(servers: addresses.Addresses) -> None:
    """Rows with their numbers take more memory than their place in the whole model."""
    shapes = [(40, 16), (SIZE, 1), (5000, 16)]
    tables = (True, False, True)
    pieces = [
        openings.Piece(str(index), 0, shape if table else shape[:1], "float32", 0, table)
        for index, (shape, table) in enumerate(zip(shapes, tables, strict=True))
    ]
    link = links.Link(servers, 0, handshake.Place(0, 1, 1, "step"))
    link.open(openings.Opening(tuple(pieces), "SGD", openings.Mode(1)).fields())
    assert shares(link)
    model = torch.cat([torch.arange(float(rows * columns)) for rows, columns in shapes])
    link.ask(Kind.LOAD, {"version": 0, "settings": SETTINGS}, [memory.view(model)])
    gradients = [rows.Rows(torch.arange(40), torch.ones(40, 16)), rows.Rows(torch.arange(3), torch.ones(3, 16))]
    dense = torch.full((SIZE,), 2.0)
    fields = {"base": 0, "number": 0, "absent": [], "settings": SETTINGS, "wish": 0, "rows": {"0": 40, "2": 3}}
    link.start(Kind.STEP, fields, [*gradients[0].views(), memory.view(dense), *gradients[1].views()])
    changed = [rows.Rows(torch.empty(size, dtype=torch.int64), torch.empty(size, 16)) for size in (40, 3)]
    weights = torch.empty(SIZE)
    answer = link.finish(lambda head: [*changed[0].views(), memory.view(weights), *changed[1].views()])
    assert answer["rows"] == {"0": 40, "2": 3}
    assert torch.equal(weights, torch.arange(float(SIZE)) - 1.0)
    for each in changed:
        assert torch.equal(each.values.flatten(), torch.arange(float(each.values.numel())) - 0.5)
    link.close()


def test_a_parameter_without_elements_and_a_table_without_changes_are_empty_pieces(
    servers: addresses.Addresses,
) -> None:
    shapes, tables = [(0,), (100, 16), (SIZE,)], (False, True, False)
    pieces = [
        openings.Piece(str(index), 0, shape, "float32", 0, table)
        for index, (shape, table) in enumerate(zip(shapes, tables, strict=True))
    ]
    link = links.Link(servers, 0, handshake.Place(0, 1, 1, "step"))
    link.open(openings.Opening(tuple(pieces), "SGD", openings.Mode(1)).fields())
    assert shares(link)
    model = torch.zeros(1600 + SIZE)
    link.ask(Kind.LOAD, {"version": 0, "settings": SETTINGS}, [memory.view(model)])
    nothing, untouched = torch.empty(0), rows.Rows(torch.empty(0, dtype=torch.int64), torch.empty(0, 16))
    fields = {"base": 0, "number": 0, "absent": [], "settings": SETTINGS, "wish": 0, "rows": {"1": 0}}
    gradient, weights = torch.ones(SIZE), torch.empty(SIZE)
    link.start(Kind.STEP, fields, [memory.view(nothing), *untouched.views(), memory.view(gradient)])
    answer = link.finish(lambda head: [memory.view(nothing), *untouched.views(), memory.view(weights)])
    assert answer["rows"] == {"1": 0}
    assert weights.unique().tolist() == [-0.5]
    link.close()


def test_a_worker_shares_memory_only_after_an_offer(servers: addresses.Addresses) -> None:
    link = opened(servers)
    with pytest.raises(errors.ServerError, match="no memory was offered"):
        link.ask(Kind.SHARE, {"sees": True})
    link.close()


def test_only_the_file_with_the_secret_is_opened(folder: Path) -> None:
    offer = segments.Offer(8192)
    assert stat.S_IMODE((folder / offer.name).stat().st_mode) == 0o600
    other = "oarlock-" + "0" * 32
    for make in (
        lambda: (folder / other).symlink_to(folder / offer.name),
        lambda: os.mkfifo(folder / other),
        lambda: (folder / other).mkdir(),
        lambda: (folder / other).write_text(offer.secret[:-1]),
        lambda: (folder / other).write_text(offer.secret + "and more"),
    ):
        make()
        with pytest.raises(OSError, match=r"plain file|secret|directory|symbolic links"):
            segments.Opened(other, offer.secret)
        (folder / other).rmdir() if (folder / other).is_dir() else (folder / other).unlink()
    for name in ("../" + offer.name, "/etc/passwd", "", offer.name + "\n"):
        with pytest.raises(OSError, match="name"):
            segments.Opened(name, offer.secret)
    theirs = segments.Opened(offer.name, offer.secret)
    with pytest.raises(OSError, match="smaller"):
        theirs.map(8192)  # it is not reserved yet
    offer.reserve()
    offer.map()[:5] = b"hello"
    assert theirs.map(8192)[:5] == b"hello"
    with pytest.raises(OSError, match="smaller"):
        theirs.map(8193)
    theirs.close()
    offer.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "folder_of", "files"),
    [
        ("0::/job/task", "job/task", ("memory.max", "memory.current")),
        ("0::/job/task", "job", ("memory.max", "memory.current")),
        ("4:memory:/job", "memory/job", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
        ("4:memory:/seen/from/outside", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ],
)
def test_a_segment_fits_into_the_memory_that_the_cgroup_leaves(
    line: str, folder_of: str, files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of a cgroup the kernel ends the process: there is no error that could be handled."""
    monkeypatch.setattr(segments, "_OURS", tmp_path / "cgroup")
    monkeypatch.setattr(segments, "_CGROUPS", tmp_path / "cgroups")
    (tmp_path / "cgroup").write_text(f"7:cpu:/\n{line}\n")
    group = tmp_path / "cgroups" / folder_of
    group.mkdir(parents=True)
    limit, used = files
    (group / limit).write_text("100000\n")
    (group / used).write_text("90000\n")
    (group / "memory.stat").write_text("anon 60000\nactive_file 20000\ninactive_file 10000\nshmem 0\n")
    segments.Offer(40_000).close()
    with pytest.raises(OSError, match="not enough memory"):
        segments.Offer(40_001)
    (group / limit).write_text("max\n")
    segments.Offer(40_001).close()


KILLED = """
import os, signal
from pathlib import Path
from oarlock.train.sharing import segments
segments.FOLDER = Path({folder!r})
offer = segments.Offer(1 << 20)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_leaves_bytes_that_the_next_offer_removes(folder: Path) -> None:
    (folder / "another-program").write_text("its own")
    died = subprocess.run([sys.executable, "-c", KILLED.format(folder=str(folder))], check=False)
    assert died.returncode == -signal.SIGKILL
    (left,) = folder.glob("oarlock-*")
    assert left.stat().st_size <= 4096
    offer = segments.Offer(1 << 20)
    assert left.exists()  # it may still be taken
    offer.close()
    os.utime(left, (1, 1))
    offer = segments.Offer(1 << 20)
    offer.reserve()
    offer.close()
    assert [each.name for each in folder.iterdir()] == ["another-program"]
