"""The change of a session from one round to the next, without its process.

A step is committed on a rank when its exchange is over: the optimizer's step follows, and needs no peer. A process that
dies may leave some ranks with the mean of the gradients and some without. So the ranks of a new round compare their
positions. A rank without the mean dropped its gradients, and the optimizer did nothing: it takes the step back, with
the batches and the learning rate, and repeats it. But if another rank committed the step, that rank's state is given
to those that have not. No rank can be more than one step ahead, because no rank enters an exchange alone.

The donor is the lowest rank of those that are farthest. With several models a step has several exchanges, in the same
order on all ranks, and all after the first that fails fail as well. So the rank that has made more of them is farther.
A newcomer is behind all others, so it receives model, optimizer, scheduler and position in the data in the same way.
Each process keeps its own random generators.

A compression does not repeat a step whose exchange is lost, so the number of the step grows though nothing was learned.
A link that takes small messages and loses large ones would so bring a job to its end with the weights of its beginning.
So the gang ends where the exchanges of MOST_LOST steps in a row are lost.

In a job of a fixed size the ranks that are left make no step. They meet all the same, and agree on their position and
state, so that one of them is enough for the successors. Then they wait for a round with all ranks, unless the training
is over. Where another one is lost meanwhile, the same begins anew. A request to stop ends the wait: the ranks agree on
it there, and save together the state that they hold.

A request to stop may also come while a round is over, and the next one is not decided, or not known to all its members.
It may never come then, because the whole gang ends. So the first rank of the last round in which all ranks had one
state saves that alone, after some seconds.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any

import torch
from torch import distributed, optim
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from oarlock.train import agreement, errors, states, stopping, worlds
from oarlock.train.rounds import LOOK_EVERY_S, NEWS_S, Round, Rounds
from oarlock.train.strategies.strategy import Strategy, figures_of, waited

MOST_LOST = 5


@dataclass(frozen=True)
class Position:
    """The facts of a session that are the same on all ranks.

    `step` counts the steps that are done, and `exchanges` the exchanges of a step after it that could not end. `made`
    are those of them that each strategy has made. `flushed` counts the strategies whose flush is over. `over`: no step
    follows.
    """

    step: int
    exchanges: int = 0
    stop: int = 0
    batch: int = 0
    noise: float | None = None
    made: tuple[int, ...] = ()
    flushed: int = 0
    over: bool = False

    @property
    def order(self) -> tuple[int, int, bool, int]:
        """The order of the positions: ranks with equal positions have the same weights."""
        return self.step, sum(self.made), self.exchanges > 0, self.flushed


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
        self._marked: tuple[int, int] | None = None  # the steps and exchanges that were done then
        self._made_before: list[int] = []  # the exchanges that each strategy had made then
        self._alone: Position | None = None  # that of the state that this rank would save alone
        self._in_a_row, self._lost_step = 0, 0  # steps that nobody could make, and the last of them
        self._passed_over: list[tuple[torch.nn.Parameter, torch.Tensor | None]] = []
        self._ours = {id(parameter) for strategy in strategies for parameter in strategy.parameters}
        self._mark = states.Mark(state, self._ours)
        self._hooks = (
            register_optimizer_step_pre_hook(self._pass_over),
            register_optimizer_step_post_hook(self._give_back),
        )

    def close(self) -> None:
        """End the session's part: from now on a lost exchange is an error, as without a session."""
        for strategy in self._strategies:
            strategy.outlives = False
        for hook in self._hooks:
            hook.remove()

    @property
    def number(self) -> int:
        """The number of the present round."""
        return self._rounds.present.number

    def newest(self) -> int:
        """Return the number of the newest round that this rank knows."""
        return self._rounds.newest().number

    def between(self) -> bool:
        """Return whether no gradients wait for an exchange: one was made since the mark, or none is ever counted."""
        return self._marked is None or not figures_of(self._strategies) or self._made() > 0

    def mark(self, done: int) -> None:
        """Remember the state after `done` steps, as far as the script changes it even if there are no gradients."""
        if self.between():
            self._marked = done, waited(self._strategies)[0]
            self._made_before = self._made_by_each()
            self._mark.take()

    def lost(self) -> bool:
        """Return whether an exchange of this step has failed."""
        return any(strategy.lost for strategy in self._strategies)

    def take_back(self, step: int) -> tuple[int, int]:
        """Undo what the script did in the steps since the mark, if their gradients are lost.

        Return the number of steps that are done, and of the exchanges that the present one has made.
        """
        if self._marked is None:
            return step, 0
        if self._made():
            # The step is over, or it has several exchanges and some are over: it cannot be repeated.
            return (step - 1, self._made()) if self.lost() else (step, 0)
        for name, kept in self._state.items():
            if name in self._mark.values:
                states.put_back(kept, self._mark.values[name], self._ours)
        for strategy in self._strategies:
            for parameter in strategy.parameters:
                parameter.grad = None
        return self._marked[0], 0

    def _made(self) -> int:
        """Return the number of exchanges since the mark."""
        return waited(self._strategies)[0] - self._marked[1] if self._marked else 0

    def _made_by_each(self) -> list[int]:
        """Return the exchanges of each strategy that did not fail."""
        figures = [strategy.figures for strategy in self._strategies]
        return [one.exchanges - one.failed if one is not None else 0 for one in figures]

    def _pass_over(self, optimizer: optim.Optimizer, *_: Any) -> None:
        """Take the gradients of a lost exchange away for the optimizer's step, so that it changes nothing.

        Elsewhere they are zeros, because scripts look at them: to clip or to scale them, for one.
        """
        lost = {id(parameter) for strategy in self._strategies if strategy.lost for parameter in strategy.parameters}
        for group in optimizer.param_groups if lost else ():
            for parameter in group["params"]:
                if id(parameter) in lost:
                    self._passed_over.append((parameter, parameter.grad))
                    parameter.grad = None

    def _give_back(self, *_: Any) -> None:
        for parameter, gradient in self._passed_over:
            parameter.grad = gradient
        self._passed_over.clear()

    def change(
        self, here: Position, cause: BaseException | None, wish: stopping.Wish, tell_lost: Callable[[int], None]
    ) -> Position:
        """Go into the next round, with all its members. Return the position from which all of them go on. In a job of a
        fixed size that is a round with all ranks, unless no step follows: none does if the `wish` of a rank is to stop.

        Without a `cause` the change is a planned one, before which the ranks exchange what they keep back.
        Raises Left if this process is not a member of the next round, Stopped if it was asked to stop and no round
        begins, and PeersLost if no round comes after the loss `cause`, or if too many steps in a row were lost.
        `tell_lost` tells the server of a lost round, where it does not see the loss.
        """
        self._rounds.keep_waiting, self._rounds.tell_lost = wish.keep_waiting, tell_lost
        self._may_save_alone(here)
        try:
            if cause is None and not worlds.joining():
                here, cause = self._flush(here)
            return self._change(here, cause, wish)
        except stopping.Stopped:
            if self._alone is None or worlds.exchanges is not None:
                raise
            return self._part(self._alone)

    def _change(self, here: Position, cause: BaseException | None, wish: stopping.Wish) -> Position:
        if here.exchanges:
            pairs = zip(self._made_by_each(), self._made_before)
            here = replace(here, made=tuple(now - before for now, before in pairs))
        while True:
            later = self._rounds.later(cause)
            if later.rank is None and not worlds.joining():
                raise Left
            if later.rank is None:  # still not taken in
                self._rounds.present = later
                continue
            try:
                position = self._enter(later, here)
            except errors.PeersLost as lost:  # another member is lost: the next round follows
                cause = lost
                continue
            if self._in_a_row > MOST_LOST:
                raise errors.PeersLost(f"{self._in_a_row} steps in a row were lost; the last: {cause}") from cause
            if position.over or later.world_size >= later.least:
                return position
            if later.rank == 0:
                sys.stderr.write(
                    f"oarlock.train: round {later.number}: {later.world_size} of {later.least} ranks wait for the "
                    f"others after step {position.step}\n"
                )
            self._may_save_alone(position)
            here, cause = self._flush(position, wish)
            if here.stop == agreement.STOP:
                return here

    def _flush(self, here: Position, wish: stopping.Wish | None = None) -> tuple[Position, errors.PeersLost | None]:
        """Exchange what the ranks of this round keep back. Return the position after it, and the loss that ended it.

        All ranks call it at the same boundary of steps, before a planned change. Another round may follow meanwhile, in
        which other ranks leave. So the ranks compare the rounds that they know, and exchange again for a later one.
        A round that comes after the last comparison is not exchanged for: the ranks go into the newest round that they
        know, since a later round may mean that a member of this one is dead. A rank that leaves in it counts as dead.
        If the `wish` of a rank is to stop, they exchange nothing, and the position says so.
        """
        flushed_for = 0
        try:
            while True:
                number, leaves, stop = self._agree(wish)
                if stop == agreement.STOP:
                    return replace(here, stop=stop), None
                if number <= flushed_for:
                    return here, None
                for strategy in self._strategies:
                    strategy.flush(leaves)
                    here = replace(here, flushed=here.flushed + 1)
                flushed_for = number
        except errors.PeersLost as lost:
            return here, lost

    def _agree(self, wish: stopping.Wish | None) -> tuple[int, list[bool], int]:
        """Return the number of the newest round, once all ranks know the same one, whether each leaves in it, and the
        strongest wish.
        """
        began = monotonic()
        while True:
            later = self._rounds.later(None, ends=lambda: _strongest(wish) == agreement.STOP)
            tired = monotonic() - began > NEWS_S
            told = self._world.gather((later.number, later.rank is None, tired, _strongest(wish)))
            numbers, leaves, tiredness, wishes = zip(*told)
            if agreement.STOP in wishes or len(set(numbers)) == 1 or any(tiredness):
                return max(numbers), list(leaves), max(wishes)
            self._rounds.keep_waiting()
            sleep(LOOK_EVERY_S)

    def _may_save_alone(self, here: Position) -> None:
        """Take note whether this rank, of all with this state, is the one to save it if no later round begins."""
        first = self._world.rank == 0 and not worlds.joining()
        self._alone = here if first and self._whole and not here.exchanges else None

    def _part(self, here: Position) -> Position:
        """Leave the others for good. Return the position at which this rank stops, and saves alone."""
        for strategy in self._strategies:
            strategy.leave()
        worlds.part()
        for strategy in self._strategies:
            strategy.regroup()
        return replace(here, stop=agreement.STOP, made=(), flushed=0)

    def _enter(self, later: Round, here: Position) -> Position:
        for strategy in self._strategies:
            strategy.leave()
        worlds.enter(later)
        told = []
        for whole, choices, *fields in self._gather(here):
            told.append((whole, Position(*fields)))
            self._keep_choices(choices)
        farthest = max(one.order for whole, one in told if whole)
        whole = [mine and one.order == farthest for mine, one in told]
        donor = whole.index(True)
        if not all(whole):
            self._give(donor, None if whole[self._world.rank] else self._missed(here, told[donor][1]))
        for strategy in self._strategies:
            strategy.regroup()
        known = [one for mine, one in told if mine]
        found = told[donor][1]
        step = found.step + 1 if found.exchanges else found.step
        if found.exchanges:
            self._in_a_row = self._in_a_row + 1 if self._lost_step == found.step else 1
            self._lost_step = step
        self._marked = None
        stop, over = max(one.stop for one in known), any(one.over for one in known)
        return replace(found, step=step, exchanges=0, stop=stop, made=(), flushed=0, over=over)

    def _missed(self, here: Position, donor: Position) -> list[bool]:
        """Return for each strategy whether the donor has made an exchange of it that this rank has not."""
        nothing = (0,) * len(self._strategies)
        pairs = zip(here.made or nothing, donor.made or nothing)
        return [donor.step > here.step or theirs > ours for ours, theirs in pairs]

    def _gather(self, here: Position) -> list[tuple[Any, ...]]:
        choices = [strategy.choice() for strategy in self._strategies]
        position = here.step, here.exchanges, here.stop, here.batch, here.noise, here.made, here.flushed, here.over
        return self._world.gather((self._whole, choices, *position))

    def _keep_choices(self, choices: Sequence[Mapping[str, Any]]) -> None:
        """Take what another rank has chosen by measurements, where this one has not."""
        for strategy, choice in zip(self._strategies, choices):
            if choice.keys() - strategy.choice().keys():
                strategy.keep_choice(choice)

    def _give(self, donor: int, missed: Sequence[bool] | None) -> None:
        """Give the donor's state to the ranks that need it. All ranks take part in the exchange.

        `missed` tells a rank that needs it which of its strategies have missed an exchange that the donor has made.
        """
        data = torch.empty(0, dtype=torch.uint8, device="cpu")
        if self._world.rank == donor:
            packed = io.BytesIO()
            state = {name: kept.state_dict() for name, kept in self._state.items()}
            torch.save({"state": state, "shared": [strategy.shared() for strategy in self._strategies]}, packed)
            data = torch.frombuffer(packed.getbuffer(), dtype=torch.uint8)
        size = self._world.gather(data.numel())[donor]
        if self._world.rank != donor:
            data = torch.empty(size, dtype=torch.uint8, device="cpu")
        if worlds.exchanges is not None:
            worlds.exchanges.broadcast(data, donor)
        else:
            with worlds.exchanging():
                worlds.finish(distributed.broadcast(data, src=donor, async_op=True))
        if missed is not None:
            self._whole, self._alone = False, None
            given = torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)
            for name, kept in self._state.items():
                kept.load_state_dict(given["state"][name])
            for strategy, shared, made in zip(self._strategies, given["shared"], missed):
                strategy.catch_up(shared, made=made)
            self._whole = True


def _strongest(wish: stopping.Wish | None) -> int:
    return agreement.GO_ON if wish is None else wish.strongest
