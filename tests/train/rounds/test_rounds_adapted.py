"""The batch size and the gain of the learning rate in an elastic job: all members of a round have the same."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.train.rounds import gang
from torch import nn

from oarlock import train
from oarlock.train import batchsizes

EXAMPLES, INITIAL = 240, 6
RATE = 0.01


def adapts(folder: Path) -> None:
    """Train with the batch size that the test decides, until a file says stop. The diary has a line for each step."""
    batchsizes.LOOK_EVERY_S = 0.0
    world = train.init()
    torch.manual_seed(world.rank)
    model = nn.Linear(6, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    train.data_parallel(model, optimizer)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(EXAMPLES, 6, generator=generator).double()
    y = x.sum(1, keepdim=True) + torch.randn(EXAMPLES, 1, generator=generator).double()
    batches = train.Batches((x, y, torch.arange(EXAMPLES)), 1, seed=3)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "batches": batches}
    taken: list[tuple[int, int]] = []
    with (folder / "diary").open("a", buffering=1) as diary, train.Session(**state, adapt=True) as session:
        for a, b, which in session.steps(batches, epochs=10_000):
            taken += [(batches.epoch, each) for each in which.tolist()]
            session.backward((model(a) - b).square().mean())
            if session.accumulating:
                continue
            gain = session.gain
            optimizer.param_groups[0]["lr"] = RATE * gain
            optimizer.step()
            optimizer.zero_grad()
            size = [session.batch.local, session.batch.accumulate]
            told = {"step": session.step, "ranks": world.world_size, "batch": size, "gain": gain, "taken": taken}
            diary.write(json.dumps(told) + "\n")
            taken = []
            if (folder.parent / "stop").exists():
                session.request_stop()
            time.sleep(0.003)
    torch.save(model.state_dict(), folder / "final.pt")


class Decided(gang.Gang):
    """Members whose first batch size is `local`. `decide` is the server's later decision, which their agents write."""

    local = "4"

    def _place(self, name: str, names: Sequence[str]) -> dict[str, str]:
        told = {"OARLOCK_BATCH_SIZE": str(INITIAL), "OARLOCK_LOCAL_BATCH": self.local}
        return {**super()._place(name, names), **told}

    def decide(self, names: Sequence[str], local: int, accumulate: int) -> None:
        for name in names:
            file = self.folder / name / batchsizes.FILE
            fresh = file.with_suffix(".new")
            fresh.write_text(json.dumps({"local": local, "accumulate": accumulate}))
            fresh.rename(file)

    def steps(self, name: str) -> dict[int, dict[str, Any]]:
        """Return the steps of a member, by number. One that was repeated is there as it was made in the end."""
        file = self.folder / name / "diary"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return {told["step"]: told for told in map(json.loads, lines)}

    def wait_for(self, names: Sequence[str], **wanted: Any) -> None:
        """Wait until each of these members has made a step that was so."""
        self.wait(lambda: all(any(wanted.items() <= told.items() for told in self.lately(name)) for name in names))

    def lately(self, name: str) -> list[dict[str, Any]]:
        return list(self.steps(name).values())[-3:]


def test_all_members_have_one_batch_size_and_one_gain_across_changes(tmp_path: Path) -> None:
    """A member is lost, one joins with another first decision and becomes the chief, and one leaves."""
    made = Decided(tmp_path, adapts)
    try:
        made.start(["a", "b", "c"])
        made.wait(lambda: all(map(made.ready, ["a", "b", "c"])))
        made.wait(lambda: any(told["gain"] > 1 for told in made.lately("a")))  # the noise is known
        made.kill("b")
        made.round(["a", "c"])
        made.decide(["a", "c"], 3, 2)
        made.wait_for(["a", "c"], ranks=2, batch=[3, 2])
        made.local = "2"  # another decision, which is not in force
        made.begin("n")
        made.wait(lambda: made.ready("n"))
        made.round(["n", "a", "c"])
        made.wait_for(["n", "a", "c"], ranks=3)
        made.decide(["n", "a", "c"], 5, 1)  # by the new chief
        made.wait_for(["n", "a", "c"], ranks=3, batch=[5, 1])
        made.round(["n", "a"], tell=["n", "a", "c"])
        made.wait_for(["n", "a"], ranks=2, batch=[5, 1])
        (tmp_path / "stop").touch()
        made.end()
        told = {name: made.steps(name) for name in "abcn"}
        weights = [torch.load(tmp_path / name / "final.pt") for name in ("a", "n")]
    finally:
        made.close()
    check_steps(told)
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


def check_steps(told: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Check that all members of a step agree, and that no example is in two steps of an epoch. Member `a` was there
    always; a step of others among other ranks was repeated without them.
    """
    epochs: dict[int, list[int]] = {}
    unwritten = max(told["b"]) + 1  # perhaps: it was killed before it wrote its last step down
    for step, ours in told["a"].items():
        theirs = [steps[step] for steps in told.values() if step in steps and steps[step]["ranks"] == ours["ranks"]]
        assert len(theirs) == ours["ranks"] or step == unwritten, step
        for each in theirs:
            assert (each["batch"], each["gain"]) == (ours["batch"], ours["gain"]), step
            for epoch, example in each["taken"]:
                epochs.setdefault(epoch, []).append(example)
    assert [told["n"][min(told["n"])][part] for part in ("ranks", "batch")] == [3, [3, 2]]
    assert told["n"][min(told["n"])]["gain"] > 1
    most = 3 * 3 * 2 + 4  # of a step, and of an unwritten one
    for epoch, examples in sorted(epochs.items())[:-1]:
        assert len(set(examples)) == len(examples), f"epoch {epoch}"
        assert len(examples) > EXAMPLES - most, f"epoch {epoch}"
