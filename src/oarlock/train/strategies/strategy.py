"""The protocol of a strategy: one way to keep the replicas of a model together.

A strategy is told these moments: it gets a model and its optimizer, training begins (after a checkpoint was restored),
a gradient must not be exchanged yet, a step is over, a checkpoint is due, training is over. A session knows strategies
by this protocol alone, and reports the same figures of each.

Most strategies are in lockstep: all ranks make the same steps. Where one is not (asynchronous parameter servers), the
session exchanges nothing at step boundaries: the strategy carries the wish to stop, and the chief alone saves.

The state that a strategy keeps between steps belongs to this rank (residuals of a compression, a local model). The
session saves it with this rank's shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn, optim

from oarlock.train import errors
from oarlock.train.measuring import noise
from oarlock.train.measuring.straggling import Slowest
from oarlock.train.measuring.waiting import Waiting
from oarlock.train.worlds import World


class Figures:
    """The measurements of a strategy. All but the noise only grow.

    `exchanges` counts the steps in which this rank took part, `failed` those of them with an exchange that could not
    end and gradients that were kept back, `sent_bytes` the bytes that it put on the wire, headers
    of the transport not counted. `share` is the number of this rank's examples in a gradient, 0 while unknown.
    `shares` counts how often it was set: all ranks set it at the same step. `waits_known` is False where exchanges are
    waited for that `waiting` does not see, `measures_noise` where the exchange tells nothing of the gradients' noise.
    """

    def __init__(self, world: World) -> None:
        self.exchanges = 0
        self.failed = 0
        self.sent_bytes = 0
        self._share = self.shares = 0
        self.waiting = Waiting(world.device)
        self.waits_known = self.measures_noise = True
        self.noise = noise.Noise(world.world_size)

    @property
    def share(self) -> int:
        return self._share

    @share.setter
    def share(self, share: int) -> None:
        self._share = share
        self.shares += 1

    def regroup(self, world: World) -> None:
        """Measure the noise anew, in a world of another size."""
        self.noise = noise.Noise(world.world_size)


class Strategy:
    """A way of training together. Subclass it and override the methods that the strategy needs.

    `kind` is its name in the job file. `figures` is None where the strategy measures nothing.
    """

    kind = "custom"
    figures: Figures | None = None
    lockstep = True
    rejoins = False  # it can go on among other processes: it has `regroup`
    outlives = False  # a session goes on with other processes where an exchange fails; else the failure is raised
    why_no_scaler = ""  # why a GradScaler does not fit; empty where it does
    keeps = False  # its state may be empty now, and not at the next checkpoint
    lost = False  # the exchange of this step has failed, so that its gradients are zeros that mean nothing
    steps_left: int | None = None  # of this training, where a session knows them
    parameters: Sequence[nn.Parameter] = ()  # those whose gradients it exchanges; a strategy that rejoins names them

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Note the loss of a process in an exchange, where a session goes on without it."""
        try:
            yield
        except errors.PeersLost:
            if not self.outlives:
                raise
            self.lost = True

    def attach(self, model: nn.Module, optimizer: optim.Optimizer | None = None) -> nn.Module:
        """Give every rank the chief's weights, and keep the replicas together from now on. Returns the model to train.

        `optimizer` is the one that steps the model. A strategy that takes part in its step refuses None.
        """
        return model

    def begin(self) -> None:
        """Begin to train from the present state of the model and the optimizer, a restored one mostly."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which backward passes only accumulate. The first one after it exchanges the sum."""
        return nullcontext()

    def after_step(self, step: int) -> None:
        """Step number `step` is over, in lockstep on every rank."""

    def reached(self, step: int) -> int:
        """Return the step that training has reached, where this rank has done `step`. It is more where others went on
        without this rank.
        """
        return step

    def tell(self, wish: int) -> int:
        """Tell the others this rank's wish to stop, with the next exchange. Return the strongest one known. Not called
        in lockstep, where the session asks all ranks.
        """
        return wish

    def compare(self, own_s: float | None) -> Slowest | None:
        """Tell the others the time of this rank's steps without waiting, with the next exchange. Return the slowest
        rank, once for each time that it tells. Not called in lockstep, where the session asks all ranks.
        """
        return None

    def share(self, step: int) -> tuple[int, int] | None:
        """Return this process's place among those that share the data of a step, and their number. None where these
        are the ranks.
        """
        return None

    def leaves(self) -> bool:
        """Return whether this process has made its last step, because the scheduler takes its place away. Not called in
        lockstep.
        """
        return False

    def before_save(self) -> None:
        """Prepare for a checkpoint, which is about to be made."""

    def finish(self, wish: int) -> None:
        """End this rank's training, with this wish to stop. A last checkpoint may follow."""

    def leave(self) -> None:
        """Let go of the exchanges of the present round, which is over."""

    def flush(self, leaves: Sequence[bool]) -> None:
        """Exchange what this rank keeps back, so that nothing is lost with the ranks that leave.

        All ranks call this together, at a boundary of steps. `leaves` tells of each rank whether it leaves. Where this
        raises PeersLost, nothing has changed here.
        """

    def shared(self) -> dict[str, Any]:
        """Return the state that is the same on all ranks, in tensors and plain values, for a rank that has it not."""
        return {}

    def catch_up(self, shared: dict[str, Any], *, made: bool) -> None:
        """Take the shared state of a rank that is farther. This rank has its model and optimizer now. `made` tells
        whether that rank has made the exchange that failed here, if one did.
        """

    def regroup(self) -> None:
        """Take in the changed world. All its ranks call this together, before the next step."""

    @property
    def replaced_alone(self) -> bool:
        """Whether the others wait in their step for the successor of a process that dies: it has `outlast`."""
        return False

    @property
    def takes_place(self) -> bool:
        """Whether this process is such a successor."""
        return False

    @property
    def version(self) -> int:
        """The number of updates in the model's weights, where others wait for a successor."""
        return 0

    def outlast(self, step: int, pack: Callable[[bool], bytes | None], keep_waiting: Callable[[], None]) -> None:
        """Wait for the successor of a process that dies after `step`, instead of an error.

        `pack` returns the state for it, with weights or without, or None where there is none now. `keep_waiting` is
        called meanwhile; it raises an exception to end that.
        """

    def take_place(self, most: int) -> bytes:
        """Return the state that another process packs, of at most so many bytes."""
        raise NotImplementedError

    def go_on_from(self, version: int) -> None:
        """Take the model's weights for those after so many updates."""

    def choice(self) -> dict[str, Any]:
        """Return what was chosen by measurements, in plain values: the same on every rank, empty while nothing is."""
        return {}

    def keep_choice(self, choice: Mapping[str, Any]) -> None:
        """Take the choice of a checkpoint, before any other state of it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that this rank must keep: tensors and plain values, empty where there is none."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of `state_dict()` again."""

    def inherit(self, chiefs: dict[str, Any], states: Iterable[dict[str, Any]], ranks: int) -> bool:
        """Take the state of `ranks` ranks, another number than now. Return whether it was used; else it is dropped.

        `states` are those that this rank inherits: each state goes to one rank, and some ranks may get none. All ranks
        are given the chief's state. Model and optimizer are restored already. All ranks call this together.
        """
        return False


class Exchanging(Strategy):
    """A strategy that exchanges gradients in the backward pass."""

    def complete_pass(self) -> bool:
        """Complete the exchange of the last pass if an error has ended that: its missing gradients are zeros. The mean
        is dropped. Return whether this rank has made such an exchange.
        """
        raise NotImplementedError

    def after_step(self, step: int) -> None:
        self.complete_pass()
        if self.lost:
            raise errors.PeersLost("a process was lost in a step")

    def finish(self, wish: int) -> None:
        self.complete_pass()


def tell_steps_left(strategies: Iterable[Strategy], step: int, total_steps: int | None) -> None:
    """Tell the strategies how many steps are left after `step`, where `total_steps` are known."""
    for one in strategies:
        one.steps_left = None if total_steps is None else total_steps - step


def figures_of(strategies: Iterable[Strategy]) -> list[Figures]:
    """Return the figures of the strategies that measure themselves."""
    return [one.figures for one in strategies if one.figures is not None]


def waited(strategies: Iterable[Strategy]) -> tuple[int, float, int]:
    """Return all their exchanges, seconds of waiting and bytes until now."""
    figures = figures_of(strategies)
    return (
        sum(one.exchanges for one in figures),
        sum(one.waiting.total_s for one in figures),
        sum(one.sent_bytes for one in figures),
    )
