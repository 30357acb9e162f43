"""The state that a parameter server keeps for its successor: complete and the newest, whenever the server is killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import crew
from tests.train.servers import farm
from tests.train.servers.test_server_deaths import serve

from oarlock.train.servers import addresses
from oarlock.train.servers.model import openings
from oarlock.train.servers.process import pushes, shard, standby
from oarlock.train.sharing import segments

PIECES = (openings.Piece("w", 0, (40, 3), "float64", 0), openings.Piece("b", 0, (7,), "float32", 0))
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"lr": 0.1, "momentum": 0.9}],
    "Adam": [{"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8}],
}


def opened(path: Path, kind: str = "SGD", *, loaded: bool = True, **mode: Any) -> shard.Shard:
    opening = openings.Opening(PIECES, kind, openings.Mode(1, **mode))
    made = shard.Shard(opening, torch.device("cpu"))
    made.keep(standby.Standby(path, "this model"))
    if loaded:
        made.load([torch.randn_like(each) for each in made.layout.buffers()], 0, SETTINGS[kind])
    return made


def update(served: shard.Shard) -> None:
    gradients = [torch.randn_like(each) for each in served.layout.buffers()]
    kind = served.opening.optimizer
    served.push(0, pushes.Push(served.version, gradients, frozenset(), SETTINGS[kind]), served.layout.buffers())


def found(path: Path) -> dict[str, Any] | None:
    """Return what a successor finds: the living server holds a lock on the files, so these are copies."""
    copied = path.with_name(f"{path.name}-copied")
    for ours, theirs in ((path, copied), (standby.shown(path), standby.shown(copied))):
        theirs.unlink(missing_ok=True)
        if ours.exists():
            shutil.copy(ours, theirs)
            theirs.chmod(0o600)
    return standby.read(copied)


def same(here: dict[str, Any] | None, there: dict[str, Any]) -> None:
    assert here is not None
    assert {name: here[name] for name in there if name not in ("weights", "tensors")} == {
        name: value for name, value in there.items() if name not in ("weights", "tensors")
    }
    for name in ("weights", "tensors"):
        assert len(here[name]) == len(there[name])
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(here[name], there[name], strict=True)), name


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_the_newest_version_is_there_after_each_update(tmp_path: Path, kind: str) -> None:
    served = opened(tmp_path / "kept", kind)
    for version in range(1, 6):
        update(served)
        same(found(tmp_path / "kept"), served.saved())
        assert served.version == version
    same(found(tmp_path / "kept"), served.saved())
    successor = shard.Shard(served.opening, torch.device("cpu"))
    successor.restore(found(tmp_path / "kept") or {})
    successor._expected.clear()  # no other worker comes back
    for each in (served, successor):
        torch.manual_seed(3)
        update(each)
    same(served.saved(), successor.saved())


def test_a_server_that_dies_within_an_update_leaves_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = opened(tmp_path / "kept")
    for _ in range(3):
        update(served)
    before, seen = served.saved(), []

    def spoil(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Change a part of the weights and of the state, as an update that is not over."""
        served.weights[0][:30].add_(1.0)
        next(iter(optimizer.state.values()))["momentum_buffer"].view(-1)[:5].add_(1.0)
        seen.append(found(tmp_path / "kept"))

    assert served._optimizer is not None
    served._optimizer.register_step_pre_hook(spoil)
    update(served)
    (within,) = seen
    same(within, before)
    same(found(tmp_path / "kept"), served.saved())


def test_a_server_that_dies_while_it_copies_leaves_the_present_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = opened(tmp_path / "kept")
    update(served)
    stamp = standby._Versions.stamp

    def stamp_the_present(versions: Any, which: int, *rest: Any) -> None:
        if which == standby.PRESENT:
            stamp(versions, which, *rest)

    monkeypatch.setattr(standby._Versions, "stamp", stamp_the_present)
    for _ in range(3):
        update(served)
        assert served._standby is not None
        served._standby._copied.wait(60)
        same(found(tmp_path / "kept"), served.saved())


def test_a_gradient_and_its_count_are_kept_together_out_of_lockstep(tmp_path: Path) -> None:
    served = opened(tmp_path / "kept", sync=False)
    for number in range(1, 4):
        gradients = [torch.randn_like(each) for each in served.layout.buffers()]
        served.push(0, pushes.Push(0, gradients, frozenset(), SETTINGS["SGD"], number), served.layout.buffers())
        kept = found(tmp_path / "kept")
        assert kept is not None
        assert (kept["version"], kept["clocks"]) == (number, {0: number})


def test_weights_that_workers_see_are_kept_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oarlock.train.servers.wire.bodies.LEAST_BYTES", 1)
    path = segments.FOLDER / f"{segments.KEPT}test-{os.getpid()}"  # a segment stays on its file system
    try:
        served = opened(path, loaded=False)
        assert served.offered(0, 1 << 10) is not None
        served.answered(0, sees=True)
        assert served._shown
        assert standby.shown(path).exists()
        served.load([torch.randn_like(each) for each in served.layout.buffers()], 0, SETTINGS["SGD"])
        for _ in range(3):
            update(served)
            same(found(path), served.saved())
        assert served._shown
        served.hide()
        assert not standby.shown(path).exists(), "the workers' memory is no longer that of the server"
        same(found(path), served.saved())
        update(served)
        same(found(path), served.saved())
        served.let_go()
        assert not path.exists()
    finally:
        for left in path.parent.glob(f"{path.name}*"):
            left.unlink()


def test_an_optimizer_without_state_keeps_nothing(tmp_path: Path) -> None:
    """The workers have the weights."""
    served = opened(tmp_path / "kept")
    update(served)
    assert (tmp_path / "kept").exists()
    served.load(served.layout.buffers(), 0, [{"lr": 0.1}])
    served.push(0, pushes.Push(0, served.layout.buffers(), frozenset(), [{"lr": 0.1}]), served.layout.buffers())
    assert list(tmp_path.iterdir()) == []


def test_without_memory_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(size: int, **_: Any) -> None:
        raise OSError("/dev/shm has not enough memory")

    monkeypatch.setattr(segments, "spare", full)
    served = opened(tmp_path / "kept")
    for _ in range(3):
        update(served)
    assert served.version == 3
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.count("not kept in shared memory") == 1


def test_only_a_plain_file_of_this_user_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kept"
    assert standby.read(path) is None
    assert not capsys.readouterr().err, "there is no predecessor"
    served = opened(path)
    update(served)
    assert path.stat().st_mode & 0o777 == 0o600
    assert standby.read(path) is None, "its server lives"
    copied = tmp_path / "copied"
    shutil.copy(path, copied)
    copied.chmod(0o644)
    assert standby.read(copied) is None
    copied.chmod(0o600)
    (tmp_path / "link").symlink_to(copied)
    assert standby.read(tmp_path / "link") is None
    assert capsys.readouterr().err.count("cannot be read") == 3
    assert standby.read(copied) is not None


def test_words_that_are_torn_are_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = opened(tmp_path / "kept")
    update(served)
    assert served._standby is not None
    served._standby._copied.wait(60)
    same(found(tmp_path / "kept"), served.saved())
    copied = tmp_path / "kept-copied"
    whole = bytearray(copied.read_bytes())
    for is_left in (True, False):  # first the words of the present version are spoiled, and then those of the copy
        whole[whole.index(b"'settings'")] ^= 1
        copied.write_bytes(whole)
        assert (standby.read(copied) is not None) == is_left, "the copy takes its place"
    copied.write_bytes(b"short")
    assert standby.read(copied) is None
    assert "cannot be read" in capsys.readouterr().err


def test_what_a_crash_has_left_is_removed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "FOLDER", tmp_path)
    names = ("old", "old-shown", "orphan-shown", "living", "living-shown", "young")
    paths = {name: tmp_path / f"{segments.KEPT}{name}" for name in names}
    long_ago = time.time() - 2 * segments._KEPT_AFTER_S
    for name, path in paths.items():
        path.touch(0o600)
        if name != "young":
            os.utime(path, (long_ago, long_ago))
    with paths["living"].open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        segments._remove_left()
    assert {name for name, path in paths.items() if path.exists()} == {"living", "living-shown", "young"}


def test_tables_and_gpus_keep_no_state() -> None:
    """An update changes few rows of a table, and a copy would be one of all."""
    rows = openings.Opening((openings.Piece("t", 0, (5, 2), "float32", 0, by_row=True),), "SGD", openings.Mode(1))
    dense = openings.Opening(PIECES, "SGD", openings.Mode(1))
    assert standby.fits(dense, torch.device("cpu"))
    assert not standby.fits(rows, torch.device("cpu"))
    assert not standby.fits(dense, torch.device("cuda"))


def test_a_server_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    """At the end of a job that was stopped: no worker has said that its training is over."""
    place = f"127.0.0.1:{crew.free_port()}"
    token = f"{farm.TOKEN} {tmp_path}"
    known = farm.variables(addresses.Addresses((place,), token))
    path = standby.place(token, 0)
    assert path is not None
    process = crew._CONTEXT.Process(target=serve, args=({**known, "OARLOCK_SERVER": place}, tmp_path / "log"))
    process.start()
    try:
        while "parameter server at" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""):
            assert process.is_alive()
            time.sleep(0.01)
        assert crew.run(trained, folder=tmp_path, world_size=1, env=known) == [-signal.SIGKILL]
        assert path.exists()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM)
        process.join()
        assert process.exitcode == 0
        assert not path.exists()
    finally:
        process.kill()
        process.join()
        standby.remove(path)


def trained() -> None:
    """Make a step with momentum, and die."""
    from oarlock import train

    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train.data_parallel(model, optimizer, strategy="ps")
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    os.kill(os.getpid(), signal.SIGKILL)
