"""A job of a fixed size whose workers are replaced alone: no step is made with fewer of them, and none is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.train import scripts
from tests.train.rounds import counting as counts
from tests.train.rounds import gang
from torch import nn

from oarlock import train

NAMES = ("a", "b", "c")
STEPS = 150
KILLED_AT = 20


def learn(folder: Path, checkpoints: Path | None = None) -> None:
    """Train to the last step. Write down each step that begins, with the size of its round."""
    world = train.init()
    torch.manual_seed(world.rank)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    train.data_parallel(model, optimizer)
    generator = torch.Generator().manual_seed(5)
    data = torch.randn(100, 6, generator=generator).double(), torch.randint(0, 3, (100,), generator=generator)
    batches = train.Batches(data, 4, seed=3)
    told = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "batches": batches}
    with (
        train.Session(**told, total_steps=STEPS, checkpoints=checkpoints, every_steps=15) as session,
        (folder / "steps.txt").open("a", buffering=1) as steps,
    ):
        for x, y in session.steps(batches):
            print(session.step, world.world_size, file=steps)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()
            counts.tell(folder, session.step)
            time.sleep(0.01)
    torch.save({**model.state_dict(), "rate": torch.tensor(scheduler.get_last_lr())}, folder / "final.pt")


def steps_of(made: gang.Gang, name: str) -> list[tuple[int, int]]:
    lines = (made.folder / name / "steps.txt").read_text().split("\n")
    return [(int(step), int(ranks)) for step, ranks in (line.split() for line in lines if line)]


@pytest.fixture
def fixed(tmp_path: Path) -> Iterator[gang.Gang]:
    made = gang.Gang(tmp_path, learn)
    made.least = len(NAMES)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The result of an undisturbed run."""
    made = gang.Gang(tmp_path_factory.mktemp("calm"), learn)
    try:
        made.start(NAMES)
        made.end()
    finally:
        made.close()
    final: dict[str, torch.Tensor] = torch.load(made.folder / "a" / "final.pt")
    return final


def begun(made: gang.Gang) -> None:
    made.start(NAMES)
    made.wait(lambda: all(made.ready(name) and counts.reached(made, name) >= KILLED_AT for name in NAMES))


def ended(made: gang.Gang, names: list[str], calm: dict[str, torch.Tensor], *, losses: int) -> None:
    """Wait for the end. All have the result of the undisturbed run, and no step had fewer ranks than all."""
    made.end()
    for name in names:
        final = torch.load(made.folder / name / "final.pt")
        for key, value in calm.items():
            assert torch.equal(final[key], value), f"{name}: {key}\n{made.output()}"
        steps = steps_of(made, name)
        assert {ranks for _, ranks in steps} == {len(NAMES)}, name
        numbers = [step for step, _ in steps]
        assert len(numbers) - len(set(numbers)) <= losses, f"{name} repeated too many steps"
        assert numbers[-1] == STEPS


@pytest.mark.parametrize("victim", ["a", "b"])
def test_the_others_wait_for_the_successor_of_a_killed_rank(
    fixed: gang.Gang, calm: dict[str, torch.Tensor], victim: str
) -> None:
    begun(fixed)
    names, place = list(NAMES), NAMES.index(victim)
    fixed.kill(victim)
    names.remove(victim)
    before = max(counts.reached(fixed, name) for name in NAMES)
    fixed.round(names)
    counts.stands_still(fixed, names)
    assert max(counts.reached(fixed, name) for name in names) <= before + 1 < STEPS, "none makes a step alone"
    counts.take_in(fixed, names, "n", place)
    ended(fixed, names, calm, losses=1)
    for name in set(NAMES) - {victim}:
        assert fixed.rounds(name) == [3], "it waited in the round between"


def test_one_of_them_is_enough_to_give_the_state(fixed: gang.Gang, calm: dict[str, torch.Tensor]) -> None:
    """The second dies while it waits, and the two successors come one after the other."""
    begun(fixed)
    fixed.kill("a")
    fixed.round(["b", "c"])
    counts.stands_still(fixed, ["b", "c"])
    fixed.kill("b")
    fixed.round(["c"])
    counts.stands_still(fixed, ["c"])
    for fresh in ("m", "n"):
        fixed.begin(fresh)
        fixed.wait(lambda fresh=fresh: fixed.ready(fresh))
        fixed.round(["m", "c"] if fresh == "m" else ["m", "n", "c"])
    ended(fixed, ["m", "n", "c"], calm, losses=1)


def normalise(folder: Path) -> None:
    """Train a model with batch normalisation. Keep its running mean of each step, and its weights."""
    world = train.init()
    torch.manual_seed(2)
    noting = scripts.Noting(8)
    model = nn.Sequential(nn.Linear(6, 8), noting, nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train.data_parallel(model, optimizer)
    data = torch.randn(100, 6, generator=torch.Generator().manual_seed(5)).double()
    batches = train.Batches((data,), 4, seed=3)
    means: dict[int, torch.Tensor] = {}
    told = {"model": model, "optimizer": optimizer, "batches": batches}
    with train.Session(**told, total_steps=60) as session:
        for (x,) in session.steps(batches):
            assert world.world_size == len(NAMES)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            means[session.step] = noting.means[-1]
            counts.tell(folder, session.step)
            time.sleep(0.01)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.save({"means": means, "weights": weights}, folder / "final.pt")


def test_the_successor_of_the_chief_lacks_only_what_its_last_batch_has_added_to_statistics(tmp_path: Path) -> None:
    """It has what the last batch of another one has added, and gives that to all. The weights do not depend on it."""
    made = {name: gang.Gang(tmp_path / name, normalise) for name in ("killed", "calm")}
    killed, calm = made.values()
    try:
        for each in made.values():
            each.folder.mkdir()
            each.least = len(NAMES)
            begun(each)
            if each is killed:
                each.kill("a")
                each.round(["b", "c"])
                counts.take_in(each, ["b", "c"], "n", 0)
            each.end()
    finally:
        for each in made.values():
            each.close()
    fresh, other = (torch.load(killed.folder / name / "final.pt") for name in ("n", "b"))
    chief, *others = (torch.load(calm.folder / name / "final.pt") for name in NAMES)
    assert torch.equal(fresh["weights"], chief["weights"])
    assert torch.equal(other["weights"], chief["weights"])
    first = min(fresh["means"])
    lacks = fresh["means"][first] - chief["means"][first]
    added = [0.9 * (each["means"][first - 1] - chief["means"][first - 1]) for each in others]
    assert any(torch.allclose(lacks, each, rtol=1e-9, atol=1e-12) for each in added), (lacks, added)
    assert lacks.abs().max() > 1e-4
    for number, step in enumerate(range(first, 61)):
        for found, expected in ((fresh, chief), (other, others[0])):
            difference = found["means"][step] - expected["means"][step]
            torch.testing.assert_close(difference, 0.9**number * lacks, rtol=1e-9, atol=1e-12)


def adds_up(folder: Path) -> None:
    """Train with gradients that are large enough for shared memory."""
    world = train.init()
    model = nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train.data_parallel(model, optimizer)
    with train.Session(model=model, optimizer=optimizer) as session:
        for step in session.steps():
            assert world.world_size == 2
            assert "/oarlock-" not in Path("/proc/self/maps").read_text(), "it has memory of another round"
            model(torch.ones(1, 300)).sum().backward()
            optimizer.step()
            counts.tell(folder, step)
            if (folder.parent / "stop").exists():
                session.request_stop()


def test_gradients_travel_alike_before_and_after_a_replacement(tmp_path: Path) -> None:
    """No rank of such a gang has memory in common with another one, also where the others of its host would."""
    made = gang.Gang(tmp_path, adds_up)
    made.least = 2
    try:
        made.start(["a", "b"])
        made.wait(lambda: all(made.ready(name) and counts.reached(made, name) >= 5 for name in "ab"))
        made.kill("b")
        made.round(["a"])
        counts.take_in(made, ["a"], "n", 1)
        before = counts.reached(made, "a")
        made.wait(lambda: all(counts.reached(made, name) > before + 5 for name in "an"))
        (tmp_path / "stop").touch()
        made.end()
    finally:
        made.close()


def dies_after_its_loop(folder: Path) -> None:
    """Leave the loop early, on all ranks at one step; rank 2 dies then, in the place of a save."""
    world = train.init()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train.data_parallel(model, optimizer)
    directory = folder.parent / "checkpoints"
    with train.Session(model=model, optimizer=optimizer, checkpoints=directory, total_steps=100) as session:
        for step in session.steps():
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            if step == 30:
                break
        while world.rank == 2 and not (folder.parent / "die").exists():
            time.sleep(0.01)
        if world.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / "left").touch()
    (folder / "ended").write_text(str(session.step))


def test_nothing_waits_for_a_successor_once_the_loop_is_left(tmp_path: Path) -> None:
    """There is no step in which it would take part."""
    made = gang.Gang(tmp_path, dies_after_its_loop)
    made.least = len(NAMES)
    try:
        made.start(NAMES)
        made.wait(lambda: all((tmp_path / name / "left").exists() for name in "ab"))
        (tmp_path / "die").touch()
        made.processes.pop("c").join()
        made.round(["a", "b"])
        made.end()
    finally:
        made.close()
    assert [(tmp_path / name / "ended").read_text() for name in "ab"] == ["30", "30"]
