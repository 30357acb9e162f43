"""This rank's batches, in an order that can be continued in the middle.

The order of an epoch is a permutation made from (seed, epoch) alone. It is cut into global batches, and each of those
into one batch for every rank. The position is the number of examples that all ranks together have taken. So a resumed
run sees the same batches as an uninterrupted run, and a run resumed with another number of ranks sees every example of
the epoch once. Reading ahead does not move the position; taking a batch does.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import data

from oarlock.train import errors, worlds


class Batches:
    """An endless iterator over this rank's batches, epoch after epoch.

    `dataset` is a tuple of tensors of equal length, or any dataset with a length. `batch_size` is the number of
    examples for one rank. With `drop_last` an epoch ends when no full global batch is left. Without it the last batch
    is smaller, and examples from the epoch's beginning fill it to a multiple of the ranks. Tensors are on `device`
    (default: this process's device). `workers` processes read ahead. There each example's random numbers come from
    (seed, epoch, example), so that they are the same after a resumption.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        workers: int = 0,
        device: torch.device | str | None = None,
        world: worlds.World | None = None,
    ) -> None:
        self._world = world or worlds.init()
        self._tensors: tuple[torch.Tensor, ...] | None = None
        if isinstance(dataset, tuple) and all(isinstance(each, torch.Tensor) for each in dataset):
            dataset = data.TensorDataset(*dataset)
        if isinstance(dataset, data.TensorDataset):
            self._tensors = dataset.tensors
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise errors.StateError(
                f"{type(dataset).__name__} has no length and no __getitem__: a position in it cannot be found again. "
                "Give a map-style dataset, or iterate over it yourself with session.steps(iterable)."
            )
        self.batch_size = batch_size
        self.epoch = 0
        self.last = False  # the present batch is its epoch's last
        self._taken = 0  # examples of this epoch taken, by all ranks together
        self._dataset, self._length = dataset, len(dataset)
        self._seed, self._shuffle, self._drop_last, self._workers = seed, shuffle, drop_last, workers
        self._device = torch.device(device) if device is not None else self._world.device
        self._loader: data.DataLoader[Any] | None = None
        self._stream: Iterator[Any] | None = None
        if len(self) < 1:
            raise errors.StateError(
                f"{self._length} examples are too few for batches of {batch_size} on {self._world.world_size} ranks: "
                "take a smaller batch_size, or drop_last=False"
            )

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch."""
        return self._batches_from(0)

    @property
    def examples(self) -> int:
        """The number of examples taken since the first epoch, by all ranks together."""
        return self.epoch * self._length + self._taken

    def remaining(self, epochs: int) -> int:
        """Return the number of batches until `epochs` epochs are done."""
        return max(0, epochs - self.epoch - 1) * len(self) + (
            self._batches_from(self._taken) if self.epoch < epochs else 0
        )

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        while not self._batches_from(self._taken):
            self.epoch, self._taken, self._stream = self.epoch + 1, 0, None
        if self._stream is None:
            self._stream = self._open()
        batch = next(self._stream)
        self._taken = min(self._taken + self._global_batch, self._length)
        self.last = not self._batches_from(self._taken)
        return _moved(batch, self._device)

    def skip(self, batches: int) -> None:
        """Move the position so many batches on, for steps that other ranks made without this one."""
        self._stream = None
        for _ in range(batches):
            while not self._batches_from(self._taken):
                self.epoch, self._taken = self.epoch + 1, 0
            self._taken = min(self._taken + self._global_batch, self._length)

    def resize(self, batch_size: int) -> None:
        """Change the number of examples for each rank, from the next batch on. All ranks must do so at the same batch.

        If an epoch is too short for one batch, the largest possible size is taken.
        """
        most = max(1, self._length // self._world.world_size) if self._drop_last else batch_size
        self.batch_size, self._stream = min(batch_size, most), None

    def state_dict(self) -> dict[str, int]:
        return {"seed": self._seed, "length": self._length, "epoch": self.epoch, "taken": self._taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the position. CheckpointError if the state belongs to other data or another seed."""
        for name, here in (("seed", self._seed), ("length", self._length)):
            if state[name] != here:
                raise errors.CheckpointError(
                    f"the checkpoint's position is in batches with {name} {state[name]}, these have {name} {here}. "
                    "Use the same, or begin again with Session(resume=False)."
                )
        self.epoch, self._taken, self._stream = state["epoch"], state["taken"], None

    @property
    def _global_batch(self) -> int:
        return self.batch_size * self._world.world_size

    def _batches_from(self, taken: int) -> int:
        left = self._length - taken
        return left // self._global_batch if self._drop_last else -(-left // self._global_batch)

    def _shares(self) -> Iterator[list[int]]:
        """Return the indices of this rank's batches from the position on.

        The iterator does not refer to these batches. Otherwise a DataLoader would end its workers only when the garbage
        collector finds the cycle, and would then wait for 5 seconds for each of them.
        """
        generator = torch.Generator().manual_seed(_mixed(self._seed, self.epoch))
        order = _order(self._length, generator if self._shuffle else None)
        end = self._taken + self._batches_from(self._taken) * self._global_batch
        starts = range(self._taken, end, self._global_batch)
        return _shares_of(order, starts, self._world.rank, self._world.world_size)

    def _open(self) -> Iterator[Any]:
        if self._tensors is not None:
            tensors = self._tensors
            return (tuple(tensor[indices] for tensor in tensors) for indices in self._shares())
        if self._loader is None:
            self._loader = data.DataLoader(
                _Seeded(self._dataset, self._seed) if self._workers else self._dataset,
                batch_sampler=_Sampler(self),
                num_workers=self._workers,
                persistent_workers=self._workers > 0,
                pin_memory=self._device.type == "cuda",
                # The loader draws a seed. Drawn from torch's own generator, it would change the numbers drawn after a
                # resume.
                generator=torch.Generator().manual_seed(_mixed(self._seed, -1)),
                worker_init_fn=outlast_sigterm,
            )
        return iter(self._loader)


def outlast_sigterm(worker: int = 0) -> None:
    """Let this worker process of a DataLoader go on after a SIGTERM: give it to the loader as `worker_init_fn`.

    A preemption sends SIGTERM to all processes of a task. If workers ended by it, the loader would raise an error
    before the session can save. The SIGTERM of the parent, which has no more work for it, does end the worker.
    """
    if hasattr(signal, "sigwaitinfo"):  # it tells the sender; macOS lacks it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_parent, name="oarlock-sigterm", daemon=True).start()


def _end_with_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


class _Sampler:
    """The sampler for a DataLoader: indices, or (epoch, index) for worker processes."""

    def __init__(self, batches: Batches) -> None:
        self._batches: Batches = weakref.proxy(batches)

    def __len__(self) -> int:
        return self._batches._batches_from(self._batches._taken)

    def __iter__(self) -> Iterator[Sequence[Any]]:
        epoch, seeded = self._batches.epoch, self._batches._workers > 0
        for share in self._batches._shares():
            yield [(epoch, index) for index in share] if seeded else share


def _order(length: int, generator: torch.Generator | None) -> torch.Tensor:
    """Return the indices in their order, on the CPU also where the script has another default device."""
    if generator is None:
        return torch.arange(length, device="cpu")
    return torch.randperm(length, generator=generator, device="cpu")


def _shares_of(order: torch.Tensor, starts: range, rank: int, ranks: int) -> Iterator[list[int]]:
    """Yield the part of this rank of each batch. A batch begins at each of `starts` in the order of the indices."""
    for start in starts:
        batch = order[start : start + starts.step]
        if len(batch) % ranks:
            batch = torch.cat((batch, order.repeat(-(-ranks // len(order)))[: ranks - len(batch) % ranks]))
        share = len(batch) // ranks
        yield batch[rank * share : (rank + 1) * share].tolist()


class _Seeded(data.Dataset[Any]):
    """A dataset that seeds the worker process for every example."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        seed = _mixed(_mixed(self._seed, epoch), index)
        random.seed(seed)
        torch.manual_seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)
        return self._dataset[index]


def _mixed(seed: int, number: int) -> int:
    """Return a 63-bit seed of two numbers (the finaliser of splitmix64), so that neighbours differ in all bits."""
    mixed = (seed * 0x9E3779B97F4A7C15 + number + 0x632BE59BD9B4E019) & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 31) >> 1


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: _moved(value, device) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        moved = [_moved(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch
