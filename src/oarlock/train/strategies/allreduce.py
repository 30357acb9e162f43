"""Allreduce: every rank computes the gradient of its own batch, and all step with the mean of them.

When the backward pass has made a bucket's gradients, they are copied side by side and summed over the ranks while the
pass goes on. At its end the means are copied back.

DistributedDataParallel sorts its buckets again after the first step. A sum's last bits depend on a number's place in
the bucket. So with three ranks or more a resumed run, which starts with the first sorting, would end with other weights
than an uninterrupted run. Here the sorting never changes. The model also stays the user's own object: no wrapper, no
`module.` in the names of its state.

Ranks of one host add up large buckets in memory that they share (sharing/crews.py). With three ranks or more this has
another order of additions than gloo, and another one for each placement. So a checkpoint holds which ranks shared
memory, and a resumed run does as that one did.

With `bucket_bytes="tuned"` the size of the buckets is measured in the first steps (tuning.py), and is part of the
checkpoint, too.

A backward pass that an error has ended makes its whole exchange, too (backward.py). So all ranks start the same buckets
in the same order, and count the same steps in a search.

With one process nothing is attached to the model, unless others may join it.

In an elastic job a process may be lost during an exchange. Then the gradients of the step are zeros, and optimizers
pass over them (membership.py), so the weights stay as they were before the step.

Such a job adds up by gloo alone, from its first round on. A rank that is lost within a sum in shared memory leaves the
threads of the others in a wait that gloo may forget, and they still write into that memory once it is over. So each
round would need memory of its own beside that of the rounds before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import distributed, nn, optim

from oarlock.train import errors, worlds
from oarlock.train.sharing import crews
from oarlock.train.strategies import backward, buckets, replicas, tuning
from oarlock.train.strategies.strategy import Exchanging, Figures


class AllReduce(Exchanging):
    """The mean of all ranks' gradients, in every step.

    `wire` is the type in which gradients travel where it is shorter than their own: torch.float16 or torch.bfloat16.
    `bucket_bytes` is the size of a bucket, None for that of the device, or "tuned".
    """

    kind = "allreduce"
    rejoins = True

    def __init__(
        self,
        *,
        unused_parameters: bool = False,
        bucket_bytes: int | str | None = None,
        wire: torch.dtype | None = None,
    ) -> None:
        self._world = worlds.init()
        self._unused, self._wire = unused_parameters, wire
        self._tunes = bucket_bytes == tuning.TUNED
        if isinstance(bucket_bytes, str) and not self._tunes:
            raise errors.StateError(f'bucket_bytes={bucket_bytes!r} is neither a number of bytes nor "{tuning.TUNED}"')
        self._bucket_bytes = None if isinstance(bucket_bytes, str) else bucket_bytes
        self._tuning: tuning.Tuning | None = None
        self._tuned: int | None = None  # the size that was chosen
        self._shares = 0  # `figures.shares` of the steps that are measured
        self.may_tune = True  # for the one that lets this strategy exchange; a size is sought in such steps alone
        self._named: list[tuple[str, nn.Parameter]] = []
        self._buckets: list[buckets.Bucket] = []
        self._places: list[tuple[buckets.Bucket, int]] = []  # of each parameter, in the order of the model
        self.passes: backward.BackwardPass | None = None
        self._started = 0
        self._open = False  # a pass has begun, and its exchange is not over
        self._measures = False
        self._hosts: list[list[int]] | None = None  # the ranks that add up in one memory, where large buckets might
        self.figures: Figures = Figures(self._world)

    def under(self, told: Mapping[str, Any], wires: Mapping[str, torch.dtype]) -> AllReduce:
        """Return this strategy, or one with the `compression` and `bucket_bytes` of the job file."""
        if told.keys().isdisjoint({"compression", "bucket_bytes"}):
            return self
        wire = wires.get(told["compression"]) if "compression" in told else self._wire
        sizes = tuning.TUNED if self._tunes else self._bucket_bytes
        return AllReduce(unused_parameters=self._unused, bucket_bytes=told.get("bucket_bytes", sizes), wire=wire)

    def attach(self, model: nn.Module, optimizer: optim.Optimizer | None = None) -> nn.Module:
        if self._world.world_size == 1 and worlds.rounds is None:
            return model
        self.join(replicas.trained(model))
        replicas.broadcast(model)
        self._look_after_buffers(model)
        return model

    def stand_by(self, model: nn.Module) -> nn.Module:
        """Share the model's buffers and follow its backward passes: another strategy exchanges the gradients."""
        self.passes = backward.BackwardPass([parameter for _, parameter in replicas.trained(model)], self)
        self._look_after_buffers(model)
        return model

    def _look_after_buffers(self, model: nn.Module) -> None:
        if any(True for _ in model.buffers()):
            model.register_forward_pre_hook(self._share_buffers)

    def join(self, named: list[tuple[str, nn.Parameter]]) -> None:
        """Exchange the gradients of these parameters from now on."""
        replicas.check_devices(named)
        replicas.check_same(self._world, named)
        self._sort(named)
        self._share()
        self.passes = backward.BackwardPass([parameter for _, parameter in named], self)

    def take_over(
        self, named: list[tuple[str, nn.Parameter]], optimizer: optim.Optimizer | None, figures: Figures | None = None
    ) -> None:
        """Go on with these parameters, which another strategy has exchanged, and with its figures. The caller tells of
        the backward passes.
        """
        self.figures = figures or self.figures
        self._sort(named)

    def let_go(self) -> None:
        """Let go of the buckets: another strategy exchanges the gradients from now on."""
        self._buckets, self._places, self._tuning = [], [], None

    def _sort(self, named: list[tuple[str, nn.Parameter]]) -> None:
        self._named = named
        if self._tunes and self._tuning is None and self._tuned is None:
            self._begin_tuning()
        self._buckets = buckets.sort(named, self._bucket_bytes, self._world.world_size, self._unused, self._wire)
        places = [(bucket, place) for bucket in self._buckets for place in range(len(bucket.parameters))]
        self._places = places[::-1]  # buckets begin with the last parameter
        self.parameters = [bucket.parameters[place] for bucket, place in self._places]

    def _begin_tuning(self) -> None:
        parameters = [parameter for _, parameter in self._named]
        default = max((buckets.default_bytes(one) for one in parameters), default=buckets.BUCKET_BYTES)
        begun = tuning.Tuning(default, sum(one.numel() * one.element_size() for one in parameters))
        self._bucket_bytes, self._shares = begun.present, self.figures.shares
        if len(begun.sizes) > 1:
            self._tuning = begun
        else:
            self._tuned = begun.present

    def _resize(self, size: int) -> None:
        """Exchange in buckets of this size from now on. All ranks call it together, between two passes."""
        if size == self._bucket_bytes:
            return
        self._bucket_bytes = size
        self._buckets, self._places = [], []  # their memory is free for the new ones
        self._sort(self._named)
        self._share()

    def _choose_size(self, search: tuning.Tuning) -> None:
        """Keep the best size that was measured, with all ranks."""
        size, steps = tuning.choose(search.sizes, self._world.gather(search.medians))
        self._tuning, self._tuned = None, size
        self._resize(size)
        if self._world.is_chief:
            known = ", ".join(f"{each / (1 << 20):.3g} MB {took * 1e3:.3g} ms" for each, took in steps.items())
            sys.stderr.write(
                f"oarlock.train: gradients travel in groups of up to {size / (1 << 20):.3g} MB from now on; "
                f"steps: {known or 'none was measured before the checkpoint'}\n"
            )

    def _take_time(self) -> None:
        """Measure the step whose exchange is over, and change the size when its steps are over."""
        search = self._tuning
        if search is None or not self.may_tune or self._world.world_size == 1:
            return
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        anew = self._shares != self.figures.shares  # the steps have another batch size than those before
        if anew:
            self._shares = self.figures.shares
            search.restart()
        if not search.step_ended(time.monotonic()) and not anew:
            return
        try:
            if search.over:
                self._choose_size(search)
            else:
                self._resize(search.present)
        except errors.PeersLost:  # the exchange of this step is over, so the step counts
            if not self.outlives:
                raise

    def before_save(self) -> None:
        if self._tuning is not None and self.may_tune and self._world.world_size > 1:
            self._choose_size(self._tuning)

    def choice(self) -> dict[str, Any]:
        sums = {"sums": self._hosts} if self._hosts is not None and self._world.world_size > 2 else {}
        return {**sums, **({"bucket_bytes": self._tuned} if self._tuned is not None else {})}

    def keep_choice(self, choice: Mapping[str, Any]) -> None:
        """Exchange in the buckets of the checkpoint, if the script permits another size than its own, and add up in the
        order of the checkpoint, as far as the ranks are placed in the same way.
        """
        if self._tunes and "bucket_bytes" in choice:
            self._tuning, self._tuned = None, int(choice["bucket_bytes"])
            if self._buckets:
                self._resize(self._tuned)
        self._keep_sums(choice.get("sums"))

    def _keep_sums(self, hosts: list[list[int]] | None) -> None:
        if hosts is None or self._hosts is None or sum(map(len, hosts)) != self._world.world_size:
            return
        if hosts == self._apart():
            for bucket in self._buckets:
                bucket.share(None)
            self._hosts = hosts
        elif self._hosts == self._apart() and worlds.crew is not None and worlds.crew.hosts == hosts:
            self._share(sparing=False)  # all memory that there is, for the bits of the run before
        if hosts != self._hosts and self._world.is_chief:
            sys.stderr.write(
                f"oarlock.train: the checkpoint's gradients were added up by {_words(hosts)}, now by "
                f"{_words(self._hosts)}: the last bits of the weights may differ from those of an uninterrupted run\n"
            )

    def _share(self, *, sparing: bool = True) -> None:
        """Let large buckets travel by memory that ranks of one host share, where there is such memory."""
        if self._wire is not None or worlds.rounds is not None or self._world.world_size == 1:
            return
        devices = {self._world.device.type, *(one.sent.device.type for one in self._buckets)}
        plain = devices == {"cpu"} and "gloo" in distributed.get_backend()
        if not all(self._world.gather(plain)):  # a rank may have a GPU where another has none
            return
        large = [one for one in self._buckets if one.sent.numel() * one.sent.element_size() >= crews.LEAST_BYTES]
        if not large:
            return
        crew = worlds.crew = worlds.crew or crews.gathered(self._world)
        sums = crews.shared(self._world, crew, [one.sent for one in large], sparing=sparing) if crew else None
        for bucket, total in zip(large, sums or ()):
            bucket.share(total)
        self._hosts = crew.hosts if crew is not None and sums else self._apart()

    def _apart(self) -> list[list[int]]:
        return [[rank] for rank in range(self._world.world_size)]

    def try_on(self, named: list[tuple[str, nn.Parameter]], optimizer: optim.Optimizer | None) -> None:
        """Get ready for `rehearse`, with these parameters of a model that another strategy trains."""
        self.take_over(named, optimizer)

    @torch.no_grad()
    def rehearse(self) -> None:
        """Make one exchange of the present gradients, whatever they are."""
        self.pass_began()
        self._exchange(self.figures)
        self._open = False

    def drop(self) -> None:
        """Let go of the optimizer."""

    def no_sync(self) -> AbstractContextManager[None]:
        return self.passes.held_back() if self.passes else nullcontext()

    def leave(self) -> None:
        self._open = False
        for bucket in self._buckets:
            bucket.clear()

    def regroup(self) -> None:
        self.lost = self._open = False
        for bucket in self._buckets:
            bucket.regroup(self._world.world_size)
        if self._tuning is not None:
            self._tuning.restart()
            self._resize(self._tuning.present)
        self.figures.regroup(self._world)

    def pass_began(self) -> None:
        self.complete_pass()
        self._open, self._started = True, 0
        self._measures = self.figures.noise.due() and self.figures.share > 0
        for bucket in self._buckets:
            bucket.clear()

    def gradient_ready(self, index: int) -> None:
        """Start the buckets that are full, always in the same order: ranks whose buckets fill up in different orders
        would otherwise sum different gradients.
        """
        bucket, place = self._places[index]
        bucket.mark(place)
        if self._started < len(self._buckets) and self._buckets[self._started].full:
            self._start_full()

    def _start_full(self) -> None:
        if self._world.world_size == 1 or self.lost:
            return
        with self.noticing():
            while self._started < len(self._buckets) and self._buckets[self._started].full:
                self._buckets[self._started].start(self._measures)
                self._started += 1

    def pass_ended(self) -> None:
        if not self._unused:
            backward.refuse_missing([name for bucket in self._buckets for name in bucket.missing()])
        figures = self.figures
        if self._world.world_size > 1 and not self.lost:
            with self.noticing():
                self._exchange(figures)
        self._open = False
        if self.lost:
            with torch.no_grad():
                for parameter in self.parameters:
                    parameter.grad = torch.zeros_like(parameter)
            return
        self._count()
        if self._measures:
            self._take_norms()
        self._take_time()

    def complete_pass(self) -> bool:
        failed, self._open = self._open, False
        if not failed or self._world.world_size == 1 or self.lost:
            return False
        with self.noticing():
            for bucket in self._buckets[self._started :]:
                bucket.start_zeros()
            for bucket in self._buckets:
                bucket.await_sum(self.figures.waiting)
            self.figures.waiting.settle()
        if self.lost:
            return False
        self._count()
        self._take_time()
        return True

    def _count(self) -> None:
        self.figures.exchanges += 1
        self.figures.sent_bytes += round(sum(bucket.sent_bytes for bucket in self._buckets))

    def _exchange(self, figures: Figures) -> None:
        for bucket in self._buckets[self._started :]:
            bucket.start(self._measures)
            self._started += 1
        for bucket in self._buckets:
            bucket.finish(figures.waiting)
        figures.waiting.settle()

    def _take_norms(self) -> None:
        norms = [bucket.norms for bucket in self._buckets if bucket.norms is not None]
        device = norms[0][0].device  # for a model on several devices: the sums are combined on the first
        local, mean = (torch.stack([pair[which].to(device) for pair in norms]).sum() for which in (0, 1))
        self.figures.noise.take(local, mean, self.figures.share)

    def _share_buffers(self, model: nn.Module, inputs: Any) -> None:
        """Give all ranks the chief's running statistics, as DistributedDataParallel does."""
        if self._world.world_size == 1 or not (model.training and torch.is_grad_enabled()):
            return
        if self.passes is not None and self.passes.exchanges and not self.lost:
            backward.complete()
            with self.noticing(), self.figures.waiting:
                replicas.broadcast_tensors([buffer.detach() for buffer in model.buffers()])


def _words(hosts: list[list[int]]) -> str:
    return "gloo" if max(map(len, hosts)) == 1 else f"shared memory of the ranks {' and '.join(map(str, hosts))}"
