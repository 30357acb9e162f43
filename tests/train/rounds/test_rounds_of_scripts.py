"""Elastic membership under the habits of scripts: they scale and clip gradients, gather them over several batches, keep
averages, draw for TensorBoard, and are told to stop while they wait.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.rounds import counting, gang

from oarlock import train
from oarlock.train.checkpointing import checkpoints, manifests


class Tally:
    """A state with a tensor, changed in every step in place, as an average of the weights is."""

    def __init__(self) -> None:
        self.steps = torch.zeros(1, dtype=torch.float64)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"].clone()


def script(folder: Path, habit: Callable[..., Callable[..., None]]) -> None:
    """Train `Counts` until a file says stop. `habit` makes the steps."""
    world = train.init()
    model = counting.Counts()
    rate = torch.tensor(1.0, dtype=torch.float64) if habit is averages else 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    train.data_parallel(model, optimizer, bucket_bytes=64)
    batches = train.Batches((torch.arange(counting.EXAMPLES),), 1, seed=3)
    once = counting.OncePerEpoch(model, batches, folder)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "batches": batches}
    step = habit(world, model, optimizer, batches, state)
    begun = joined = 0
    with train.Session(**state, hooks=[once], logdir=folder.parent / "board") as session:
        joined = session.step
        for (examples,) in session.steps(batches, epochs=10_000):
            begun += 1
            step(session, examples)
            session.log(value=float(session.step))
            time.sleep(0.002)
        step(session, None)
    kept = {"model": model.state_dict(), "rate": {}, "checked": once.checked}
    torch.save({**kept, "repeated": begun - (session.step - joined)}, folder / "final.pt")


def scales(world: Any, model: Any, optimizer: Any, batches: Any, state: dict[str, Any]) -> Any:
    """A GradScaler wants gradients in each step. So does a script that clips them, or logs their norms after it."""
    scaler = state["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=50)
    most = 2.0**20

    def step(session: Any, examples: torch.Tensor | None) -> None:
        if examples is None:
            return
        optimizer.zero_grad()
        scaler.scale(-world.world_size * model(examples)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9, error_if_nonfinite=True)
        scaler.step(optimizer)
        scaler.update()
        assert sum(parameter.grad.norm() for parameter in model.parameters()) >= 0
        if scaler.get_scale() > most:
            scaler.update(2.0)

    return step


def gathers(world: Any, model: Any, optimizer: Any, batches: Any, state: dict[str, Any]) -> Any:
    """Gradients of up to three batches are summed before an exchange."""

    def step(session: Any, examples: torch.Tensor | None) -> None:
        if examples is None:
            return
        exchanges = session.step % 3 == 0 or batches.last
        with contextlib.nullcontext() if exchanges else train.no_sync(model):
            (-world.world_size * model(examples)).backward()
        if exchanges:
            optimizer.step()
            optimizer.zero_grad()

    return step


def averages(world: Any, model: Any, optimizer: Any, batches: Any, state: dict[str, Any]) -> Any:
    """The learning rate and other state are tensors that change in place."""
    tally = state["tally"] = Tally()
    scheduler = state["scheduler"] = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 + step % 7)

    def step(session: Any, examples: torch.Tensor | None) -> None:
        if examples is None:
            assert float(tally.steps) == session.step, (tally.steps, session.step)
            return
        rate = optimizer.param_groups[0]["lr"]
        assert isinstance(rate, torch.Tensor)
        assert float(rate) == 1.0 + (session.step - 1) % 7, (rate, session.step)
        optimizer.zero_grad()
        (-world.world_size * model(examples) / rate).backward()
        optimizer.step()
        scheduler.step()
        tally.steps += 1

    return step


@pytest.mark.parametrize(
    ("habit", "most"), [(scales, 1), (gathers, 3), pytest.param(averages, 1, marks=pytest.mark.long)]
)
def test_a_loss_costs_a_step_whatever_a_script_does_with_its_gradients(
    tmp_path: Path, habit: Callable[..., Any], most: int
) -> None:
    made = gang.Gang(tmp_path, script, habit)
    try:
        names = ["a", "b", "c"]
        made.start(names)
        for number in range(4):
            made.wait(lambda: all(map(made.ready, names)))
            reached = counting.reached(made, names[1])
            made.wait(lambda reached=reached: counting.reached(made, names[1]) > reached + 20)
            victim = names.pop(number % 3)
            made.signal(victim, signal.SIGSTOP)
            counting.stands_still(made, names)  # the others wait for it in an exchange, of gradients mostly
            made.kill(victim)
            counting.change(made, names)
            counting.take_in(made, names, f"n{number}", number % 3)
        reached = counting.reached(made, names[1])
        made.wait(lambda: counting.reached(made, names[1]) > reached + 3 * counting.EXAMPLES // len(names))
        counting.end(made, names, losses=4 * most)
        finals = [torch.load(tmp_path / name / "final.pt") for name in names]
        assert any(final["checked"] for final in finals), "no epoch was looked at"
    finally:
        made.close()


def test_the_new_first_rank_writes_for_tensorboard(tmp_path: Path) -> None:
    made = gang.Gang(tmp_path, script, scales)
    try:
        names = ["a", "b"]
        made.start(names)
        made.wait(lambda: all(map(made.ready, names)) and counting.reached(made, "b") > 5)
        made.kill("a")
        counting.change(made, ["b"])
        made.begin("n")
        made.wait(lambda: made.ready("n"))
        counting.change(made, ["n", "b"])  # the first rank is another one again, and the one before it lives on
        held = {path: path.stat().st_size for path in (tmp_path / "board").iterdir()}
        reached = counting.reached(made, "n")
        made.wait(lambda: counting.reached(made, "n") > reached + 200)
        grown = {path for path in (tmp_path / "board").iterdir() if path.stat().st_size > held.get(path, 0)}
        pids = {int(path.name.rpartition(".")[2]) for path in grown}
        assert pids == {made.processes["n"].pid}, "another rank draws, too"
        counting.end(made, ["n", "b"], losses=1)
    finally:
        made.close()
    assert len(held) == 3, held


def test_a_newcomer_that_is_told_to_stop_does_not_wait_for_a_round(tmp_path: Path) -> None:
    made = gang.Gang(tmp_path, script, scales)
    try:
        made.start(["a", "b"])
        made.begin("n")
        made.wait(lambda: made.ready("n"))
        made.signal("n", signal.SIGTERM)
        waits = made.processes.pop("n")
        made.wait(lambda: not waits.is_alive())
        assert waits.exitcode == 128 + signal.SIGTERM, made.output()
        counting.end(made, ["a", "b"], losses=0)
    finally:
        made.close()


def test_a_member_that_is_told_to_stop_does_not_wait_long_for_a_round(tmp_path: Path) -> None:
    """A member was lost, and then the gang is told to stop: no round comes any more."""
    made = gang.Gang(tmp_path, script, scales)
    try:
        made.start(["a", "b"])
        made.wait(lambda: all(map(made.ready, ["a", "b"])) and counting.reached(made, "b") > 5)
        made.kill("a")
        made.signal("b", signal.SIGTERM)
        waits = made.processes.pop("b")
        made.wait(lambda: not waits.is_alive())
        assert waits.exitcode == 128 + signal.SIGTERM, made.output()
    finally:
        made.close()


def saves(folder: Path) -> None:
    """Begin a save at step 5, on a disk that is slow until a file says so."""
    train.init()
    write, slow = checkpoints._write_shard, folder.parent / "slow"

    def wait(*given: Any) -> Any:
        while slow.exists():
            time.sleep(0.01)
        return write(*given)

    checkpoints._write_shard = wait
    model = counting.Counts()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train.data_parallel(model, optimizer)
    batches = train.Batches((torch.arange(counting.EXAMPLES),), 1, seed=3)
    with train.Session(model=model, batches=batches, checkpoints=folder.parent / "saved", every_s=1e6) as session:
        for (examples,) in session.steps(batches, epochs=10_000):
            model(examples).backward()
            counting.tell(folder, session.step)
            if session.step == 5:
                session._saved_at = -1e9  # a save is due
            if (folder.parent / "stop").exists():
                session.request_stop()
            time.sleep(0.002)


def test_a_save_that_was_lost_with_a_rank_is_made_again_soon(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    saved = tmp_path / "saved"
    made = gang.Gang(tmp_path, saves)
    try:
        made.start(["a", "b", "c"])
        made.wait(lambda: len(list(saved.glob("*/"))) == 1)
        reached = counting.reached(made, "b")
        made.wait(lambda: counting.reached(made, "b") > reached + 20)
        made.kill("a")
        counting.change(made, ["b", "c"])
        (tmp_path / "slow").unlink()
        made.wait(lambda: any(path.name.startswith("attempt-1-round-2") for path in manifests.complete(saved)))
        (tmp_path / "stop").touch()
        made.end()
    finally:
        made.close()
    assert not any("round-1" in path.name for path in manifests.complete(saved))


def gathers_first(folder: Path) -> None:
    """Exchange a number before the session."""
    world = train.init()
    assert len(world.gather(1)) == world.world_size
    script(folder, scales)


def test_a_newcomer_is_told_why_it_cannot_exchange_before_its_session(tmp_path: Path) -> None:
    made = gang.Gang(tmp_path, gathers_first)
    try:
        made.start(["a", "b"])
        made.begin("n")
        fails = made.processes.pop("n")
        made.wait(lambda: not fails.is_alive())
        assert fails.exitcode == 1
        assert "this process joins others that train already" in (tmp_path / "n" / "output.txt").read_text()
        counting.end(made, ["a", "b"], losses=0)
    finally:
        made.close()
