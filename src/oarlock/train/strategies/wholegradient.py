"""Strategies that exchange the whole gradient at the end of the backward pass.

A compressed gradient is small: one exchange of everything costs less than many that overlap with the pass, and all
ranks issue it at the same place.

In an elastic job a process may be lost during the exchange. A compression has added the gradient to the numbers that
this rank keeps back, and nothing of that was sent then: later steps send it. So the step is not repeated. The gradients
become zeros, and optimizers pass over them. But if another rank has made the exchange, that rank also has the part that
this one sent (`then`). In both cases no rank that is left loses anything but its gradient of tensors that travel whole.

A process that leaves by a plan takes nothing with it: before the change the others get what it keeps back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import distributed, nn, optim

from oarlock.train import errors, worlds
from oarlock.train.measuring import noise, sketches
from oarlock.train.strategies import backward, replicas
from oarlock.train.strategies.strategy import Exchanging, Figures

SKETCH_EVERY = 16
"""The noise is measured in one of so many exchanges. A sketch of 25 MB takes a core some 6 ms."""


class WholeGradient(Exchanging):
    """The moments of a pass. A subclass overrides `prepare` and `exchange`.

    `named` are the trained parameters. In `exchange` each has a contiguous dense gradient: this rank's, then the mean.
    """

    kind = "allreduce"
    rejoins = True

    def __init__(self, *, unused_parameters: bool = False) -> None:
        self.world = worlds.init()
        self.named: list[tuple[str, nn.Parameter]] = []
        self._unused = unused_parameters
        self.unreached: set[int] = set()  # the ids of parameters without a gradient on any rank, in this exchange
        self.even = False  # what is kept back is the same on all ranks: they have exchanged nothing since `flush`
        self._made: set[int] = set()
        self._open = False  # a pass has begun, and has not come to its exchange
        self._afterwards: list[Callable[[], object]] = []
        self.passes: backward.BackwardPass | None = None
        self.figures: Figures = Figures(self.world)
        self._since_regroup = 0  # exchanges, the same number on all ranks

    def prepare(self, optimizer: optim.Optimizer | None) -> None:
        """Make the state for `named`. All ranks have the same parameters, not yet the same weights."""
        raise NotImplementedError

    def alone(self, optimizer: optim.Optimizer | None) -> None:
        """Take note of the optimizer, in a world of one process."""

    def exchange(self) -> None:
        """Replace every gradient by the mean of all ranks' gradients, or by what stands for it.

        Parameters of `unreached` take no part in it: nothing of them is sent, and what is kept back of them stays.
        Until its exchanges are over, it adds the gradient to the numbers that are kept back, and changes nothing else.
        """
        raise NotImplementedError

    def then(self, change: Callable[[], object]) -> None:
        """Make this change once the exchange is over: it takes away what was sent."""
        self._afterwards.append(change)

    def settle(self) -> None:
        """Make the changes that were to follow the exchange."""
        for change in self._afterwards:
            change()
        self._afterwards.clear()

    def start_sum(self, flat: torch.Tensor) -> Any:
        """Begin to sum `flat` over the ranks, in place."""
        self.count_ring(flat)
        if self.world.world_size == 1:
            return None
        with worlds.exchanging():
            return distributed.all_reduce(flat, async_op=True)

    def start_broadcast(self, tensor: torch.Tensor, rank: int) -> Any:
        """Begin to give this rank's tensor to all."""
        with worlds.exchanging():
            return distributed.broadcast(tensor, src=rank, async_op=True)

    def wait_for(self, work: Any) -> None:
        """Wait for an exchange."""
        with worlds.exchanging(), self.figures.waiting:
            if work is not None:
                worlds.finish(work)

    def attach(self, model: nn.Module, optimizer: optim.Optimizer | None = None) -> nn.Module:
        self.named = replicas.trained(model)
        if self.world.world_size == 1 and worlds.rounds is None:
            self.alone(optimizer)
            return model
        replicas.check_devices(self.named)
        self.prepare(optimizer)
        self.parameters = [parameter for _, parameter in self.named]
        replicas.check_same(self.world, self.named)
        replicas.broadcast(model)
        self.follow()
        if any(True for _ in model.buffers()):
            model.register_forward_pre_hook(self._share_buffers)
        return model

    def follow(self) -> None:
        """Take part in the backward passes from now on."""
        self.passes = backward.BackwardPass([parameter for _, parameter in self.named], self)

    def take_over(
        self, named: list[tuple[str, nn.Parameter]], optimizer: optim.Optimizer | None, figures: Figures | None = None
    ) -> None:
        """Go on with these parameters, which another strategy has exchanged, and with its figures. The caller tells of
        the backward passes.
        """
        self.named = named
        self.figures = figures or self.figures
        self.figures.measures_noise = True
        if self.world.world_size == 1 and worlds.rounds is None:
            self.alone(optimizer)
        else:
            self.prepare(optimizer)

    def try_on(self, named: list[tuple[str, nn.Parameter]], optimizer: optim.Optimizer | None) -> None:
        """Get ready for `rehearse`, with these parameters of a model that another strategy trains."""
        self.take_over(named, optimizer)

    def stages(self, steps: int) -> list[tuple[int, int]]:
        """Return the parts of a training of so many steps whose exchanges differ: the exchanges before each part, and
        its number of steps.
        """
        return [(0, steps)]

    def enter(self, exchanges: int) -> None:
        """Get ready to rehearse the exchange after so many others."""

    @torch.no_grad()
    def rehearse(self) -> None:
        """Make one exchange of the present gradients."""
        self.exchange()
        self.settle()

    def drop(self) -> None:
        """Let go of the optimizer."""

    def no_sync(self) -> AbstractContextManager[None]:
        return self.passes.held_back() if self.passes else nullcontext()

    def regroup(self) -> None:
        self.lost = self._open = False
        self._afterwards.clear()
        self._since_regroup = 0
        self.figures.regroup(self.world)

    def flush(self, leaves: Sequence[bool]) -> None:
        self.flush_all()
        self.even = True

    def flush_all(self) -> None:
        """Make what the ranks keep back the same on all of them.

        All exchanges come before the first change, so that a lost process leaves each rank as before or as after.
        """

    def catch_up(self, shared: dict[str, Any], *, made: bool) -> None:
        if made:
            self.settle()
        self.even = bool(shared.get("even"))

    def pass_began(self) -> None:
        self.complete_pass()
        self._open = True
        self._made.clear()

    def gradient_ready(self, index: int) -> None:
        name, parameter = self.named[index]
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise errors.StateError(f"{name} has a sparse gradient, which compression does not know: use sparse=False")
        self._made.add(index)

    @torch.no_grad()
    def pass_ended(self) -> None:
        if not self._unused:
            backward.refuse_missing([name for index, (name, _) in enumerate(self.named) if index not in self._made])
        made = [parameter.grad for _, parameter in self.named]
        for _, parameter in self.named:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad = parameter.grad.contiguous()
        self._open = False
        self._exchange([gradient is not None for gradient in made])
        for (_, parameter), gradient in zip(self.named, made):
            if id(parameter) in self.unreached:
                parameter.grad = gradient  # mostly None: an optimizer passes over it
        if self.lost:
            for _, parameter in self.named:
                parameter.grad = torch.zeros_like(parameter)

    @torch.no_grad()
    def complete_pass(self) -> bool:
        failed, self._open = self._open, False
        if not failed or self.world.world_size == 1 or self.lost:
            return False
        held = [parameter.grad for _, parameter in self.named]
        for _, parameter in self.named:
            parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        try:
            self._exchange([False] * len(self.named))
        finally:
            for (_, parameter), gradient in zip(self.named, held):
                parameter.grad = gradient
        return not self.lost

    def _exchange(self, made: Sequence[bool]) -> None:
        """Make the exchange. `made` tells of each parameter whether this rank has a gradient of it."""
        if not self.lost:
            self.even = False
            with self.noticing():
                try:
                    self._find_unreached(made)
                    self._measure_noise()
                except errors.PeersLost:
                    self.exchange()  # it fails, too, and keeps the gradients for later steps
                    raise
                self.exchange()
            self.figures.exchanges += 1  # a lost one, too: its step is not repeated
            self.figures.failed += self.lost
        if not self.lost:
            self.settle()
            self.figures.waiting.settle()

    def _find_unreached(self, made: Sequence[bool]) -> None:
        """Find the parameters of which no rank has a gradient. Without `unused_parameters` each rank has all."""
        self.unreached = set()
        if self._unused:
            ranks = torch.tensor(made, dtype=torch.float32, device=self.named[0][1].device)
            self.wait_for(self.start_sum(ranks))
            self.unreached = {id(one) for (_, one), count in zip(self.named, ranks.tolist()) if not count}

    def _measure_noise(self) -> None:
        """Measure the noise, now and then: by sketches, since nothing else sums the whole gradients."""
        self._since_regroup += 1
        if self.world.world_size == 1 or self._since_regroup % SKETCH_EVERY != 1:
            return
        own = sketches.sketch([gradient(parameter) for _, parameter in self.named], self._since_regroup)
        mean = own / self.world.world_size
        self.wait_for(self.start_sum(mean))
        if self.figures.share > 0:
            self.figures.noise.take(noise.squared_norm(own), noise.squared_norm(mean), self.figures.share)

    def knows(self, state: dict[str, Any], part: str) -> bool:
        """Return whether a saved state has this part. If not, say that it is of another compression."""
        if part not in state and self.world.is_chief:
            sys.stderr.write("oarlock.train: the checkpoint was made with another compression: its state is dropped\n")
        return part in state

    def count_ring(self, flat: torch.Tensor) -> None:
        """Count the bytes that this rank sends to sum `flat` by a ring."""
        ranks = self.world.world_size
        self.figures.sent_bytes += round(2 * (ranks - 1) / ranks * flat.numel() * flat.element_size())

    def _share_buffers(self, model: nn.Module, inputs: Any) -> None:
        if self.world.world_size == 1 or self.lost or not (model.training and torch.is_grad_enabled()):
            return
        if self.passes is not None and self.passes.exchanges:
            backward.complete()
            with self.noticing(), self.figures.waiting:
                replicas.broadcast_tensors([buffer.detach() for buffer in model.buffers()])


def gradient(parameter: nn.Parameter) -> torch.Tensor:
    """Return the gradient that `exchange` was promised."""
    if parameter.grad is None:
        raise errors.StateError("a gradient was removed during the backward pass: do that after backward()")
    return parameter.grad
