"""Every example once an epoch, by one rank, in an order that can be taken up again anywhere."""

from __future__ import annotations

import gc
import multiprocessing
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import data

from oarlock.train import errors
from oarlock.train.batches import Batches
from oarlock.train.worlds import World

CPU = torch.device("cpu")


def crew(length: int, batch_size: int, ranks: int, **options: Any) -> list[Batches]:
    numbers = (torch.arange(length),)
    return [Batches(numbers, batch_size, world=World(rank, ranks, rank, CPU), **options) for rank in range(ranks)]


def taken(batches: Batches, count: int) -> list[list[int]]:
    return [next(batches)[0].tolist() for _ in range(count)]


shapes = st.tuples(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.booleans())


@given(shapes)
def test_an_epoch_is_shared_out(shape: tuple[int, int, int, bool]) -> None:
    length, batch_size, ranks, drop_last = shape
    if drop_last and length < batch_size * ranks:
        return
    members = crew(length, batch_size, ranks, drop_last=drop_last)
    shares = [taken(member, len(member)) for member in members]
    assert len({len(share) for share in shares}) == 1, "as many batches for each rank: they exchange gradients"
    for number in range(len(shares[0])):
        assert len({len(share[number]) for share in shares}) == 1
    seen = [index for share in shares for batch in share for index in batch]
    if drop_last:
        assert len(seen) == len(set(seen)) == length // (batch_size * ranks) * batch_size * ranks
    else:
        assert set(seen) == set(range(length))
        assert len(seen) - length < ranks
    assert all(member.last and member.epoch == 0 and not member.remaining(1) for member in members)


@given(shapes, st.integers(0, 40), st.integers(1, 10))
def test_a_position_can_be_taken_up_again(shape: tuple[int, int, int, bool], before: int, after: int) -> None:
    length, batch_size, ranks, _ = shape
    whole, resumed = (crew(length, batch_size, ranks, drop_last=False)[-1] for _ in range(2))
    taken(whole, before)
    left = whole.remaining(9)
    resumed.load_state_dict(whole.state_dict())
    assert resumed.remaining(9) == left
    assert taken(resumed, after) == taken(whole, after)
    assert (resumed.epoch, resumed.examples) == (whole.epoch, whole.examples)


def test_a_position_that_is_loaded_while_batches_are_read_is_taken_up_at_once() -> None:
    (batches,) = crew(20, 2, 1)
    position, first = batches.state_dict(), taken(batches, 3)
    batches.load_state_dict(position)
    assert taken(batches, 3) == first


def test_with_another_number_of_ranks_the_epoch_goes_on_with_its_rest() -> None:
    two = crew(48, 4, 2)
    before = [index for member in two for batch in taken(member, 3) for index in batch]
    three = crew(48, 4, 3)
    for member in three:
        member.load_state_dict(two[0].state_dict())
    after = [index for member in three for batch in taken(member, member.remaining(1)) for index in batch]
    assert sorted(before + after) == list(range(48))


def test_epochs_and_seeds_differ_and_no_shuffle_is_in_order() -> None:
    (batches,) = crew(20, 5, 1)
    (other,) = crew(20, 5, 1, seed=1)
    first, second = taken(batches, 4), taken(batches, 4)
    assert first != second
    assert first != taken(other, 4)
    (straight,) = crew(7, 3, 1, shuffle=False, drop_last=False)
    assert taken(straight, 4) == [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2]]


class Augmented(data.Dataset[Any]):
    """Gives the index and random numbers of every kind."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "torch": torch.rand(()), "python": random.random()}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # worker processes are forked, whatever threads there are
def test_a_dataset_read_ahead_resumes_with_the_same_random_numbers(workers: int) -> None:
    def made() -> Batches:
        return Batches(Augmented(), 4, workers=workers, world=World(0, 1, 0, CPU))

    torch.manual_seed(0)
    random.seed(0)
    whole = made()
    begun = [next(whole) for _ in range(8)]  # into the second epoch, though the workers are further
    assert sorted(torch.cat([batch["index"] for batch in begun[:6]]).tolist()) == list(range(24))
    position, generators = whole.state_dict(), (torch.get_rng_state(), random.getstate())
    expected = [next(whole) for _ in range(6)]
    torch.set_rng_state(generators[0])
    random.setstate(generators[1])
    resumed = made()
    resumed.load_state_dict(position)
    for one, other in zip((next(resumed) for _ in range(6)), expected, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert len({float(number) for batch in begun for number in batch["torch"]}) == 32


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # worker processes are forked, whatever threads there are
def test_workers_end_with_their_batches() -> None:
    """The garbage collector would end them too late, and wait for 5 seconds for each."""
    before = set(multiprocessing.active_children())
    batches = Batches(Augmented(), 4, workers=2, world=World(0, 1, 0, CPU))
    next(batches)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    gc.disable()
    try:
        del batches
        assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()


def test_data_without_a_position_or_a_batch_is_refused() -> None:
    with pytest.raises(errors.StateError, match=r"no length .* session\.steps\(iterable\)"):
        Batches(iter([1]), 1, world=World(0, 1, 0, CPU))
    with pytest.raises(errors.StateError, match="10 examples are too few for batches of 6 on 2 ranks"):
        crew(10, 6, 2)
    (batches,) = crew(10, 5, 1)
    (other,) = crew(12, 5, 1)
    with pytest.raises(errors.CheckpointError, match="length 10, these have length 12"):
        other.load_state_dict(batches.state_dict())
