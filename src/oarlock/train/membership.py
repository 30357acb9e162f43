"""The change of a session from one round to the next, without its process.

A step is committed on a rank when its exchange is over: the optimizer's step follows, and needs no peer. A process that
dies may leave some ranks with the mean of the gradients and some without. So the ranks of a new round compare their
positions. A rank without the mean dropped its gradients, and the optimizer did nothing: it takes the step back, with
the batches and the learning rate, and repeats it. But if another rank committed the step, that rank's state is given
to those that have not. No rank can be more than one step ahead, because no rank enters an exchange alone.

The donor is the lowest rank of those that are farthest. A newcomer is behind all others, so it receives model,
optimizer, scheduler and position in the data in the same way. Each process keeps its own random generators.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import distributed, optim

from oarlock.train import errors, worlds
from oarlock.train.rounds import Round, Rounds
from oarlock.train.strategies.strategy import Strategy, waited


@dataclass(frozen=True)
class Position:
    """The facts of a session that are the same on all ranks.

    `step` counts the steps that are done, and `exchanges` the exchanges of a step after it that could not end.
    """

    step: int
    exchanges: int = 0
    stop: int = 0
    batch: int = 0
    noise: float | None = None


class Left(SystemExit):
    """This process is no longer a member of its gang. If not caught, the process ends well."""

    def __init__(self) -> None:
        super().__init__(0)


class Membership:
    """The part of a session that outlives a round."""

    def __init__(self, rounds: Rounds, state: Mapping[str, Any], strategies: Sequence[Strategy]) -> None:
        self._rounds = rounds
        self._world = worlds.init()
        self._state, self._strategies = state, strategies
        for strategy in strategies:
            strategy.outlives = True
        self._whole = not worlds.joining()  # this rank's state is that of its position
        self._mark: dict[str, Any] = {}
        self._exchanges = 0

    @property
    def number(self) -> int:
        """The number of the present round."""
        return self._rounds.present.number

    def newest(self) -> int:
        """Return the number of the newest round that this rank knows."""
        return self._rounds.newest().number

    def mark(self) -> None:
        """Remember the state before a step, as far as the script changes it even if there are no gradients."""
        self._exchanges = waited(self._strategies)[0]
        self._mark = {name: _plain(kept) for name, kept in self._state.items()}

    def lost(self) -> bool:
        """Return whether an exchange of this step has failed."""
        return any(strategy.lost for strategy in self._strategies)

    def take_back(self, step: int) -> tuple[int, int]:
        """Undo what the script did in a step without gradients.

        Return the number of steps that are done, and of the exchanges that the present one has made.
        """
        made = waited(self._strategies)[0] - self._exchanges
        if made:  # the step has several exchanges, and some are over: it cannot be repeated
            return step - 1, made
        for name, kept in self._state.items():
            _put_back(kept, self._mark.get(name))
        return step - 1, 0

    def change(self, here: Position, cause: BaseException | None) -> Position:
        """Go into the next round, with all its members. Return the position from which all of them go on.

        Raises Left if this process is not a member of it, and PeersLost if no round comes after the loss `cause`.
        """
        while True:
            later = self._rounds.later(cause)
            if later.rank is None and not worlds.joining():
                raise Left
            if later.rank is None:  # still not taken in
                self._rounds.present = later
                continue
            try:
                return self._enter(later, here)
            except errors.PeersLost as lost:  # another member is lost: the next round follows
                cause = lost

    def _enter(self, later: Round, here: Position) -> Position:
        for strategy in self._strategies:
            strategy.leave()
        worlds.enter(later)
        told = [(whole, Position(*fields)) for whole, *fields in self._gather(here)]
        farthest = max((one.step, one.exchanges) for whole, one in told if whole)
        whole = [mine and (one.step, one.exchanges) == farthest for mine, one in told]
        donor = whole.index(True)
        if not all(whole):
            self._give(donor, receives=not whole[self._world.rank])
        for strategy in self._strategies:
            strategy.regroup()
        known = [one for mine, one in told if mine]
        found = told[donor][1]
        step = found.step + 1 if found.exchanges else found.step
        return replace(found, step=step, exchanges=0, stop=max(one.stop for one in known))

    def _gather(self, here: Position) -> list[tuple[Any, ...]]:
        return self._world.gather((self._whole, here.step, here.exchanges, here.stop, here.batch, here.noise))

    def _give(self, donor: int, *, receives: bool) -> None:
        """Give the donor's state to the ranks that need it. All ranks take part in the exchange."""
        data = torch.empty(0, dtype=torch.uint8)
        if self._world.rank == donor:
            packed = io.BytesIO()
            torch.save({name: kept.state_dict() for name, kept in self._state.items()}, packed)
            data = torch.frombuffer(packed.getbuffer(), dtype=torch.uint8)
        size = self._world.gather(data.numel())[donor]
        if self._world.rank != donor:
            data = torch.empty(size, dtype=torch.uint8)
        with worlds.exchanging():
            worlds.finish(distributed.broadcast(data, src=donor, async_op=True))
        if receives:
            self._whole = False
            given = torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)
            for name, kept in self._state.items():
                kept.load_state_dict(given[name])
            self._whole = True


def _plain(kept: Any) -> Any:
    """Return a copy of the state that costs little: the groups of an optimizer, or a state without tensors."""
    if isinstance(kept, optim.Optimizer):
        return [{name: value for name, value in group.items() if name != "params"} for group in kept.param_groups]
    if isinstance(kept, torch.nn.Module):
        return None
    state = kept.state_dict()
    return None if _holds_tensor(state) else copy.deepcopy(state)


def _put_back(kept: Any, state: Any) -> None:
    if state is None:
        return
    if isinstance(kept, optim.Optimizer):
        for group, before in zip(kept.param_groups, state):
            group.update(before)
    else:
        kept.load_state_dict(state)


def _holds_tensor(state: Any) -> bool:
    if isinstance(state, Mapping):
        return any(map(_holds_tensor, state.values()))
    if isinstance(state, (list, tuple)):
        return any(map(_holds_tensor, state))
    return isinstance(state, torch.Tensor)
