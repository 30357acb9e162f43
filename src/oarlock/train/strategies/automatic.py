"""The choice of an exchange by measurement.

There is a choice where the job has parameter servers (`strategy="auto"` uses them only if that is faster), and where
the user permits lossy compression (`compression="auto"`). Training begins with dense allreduce. In turn, a step makes
its exchange during the backward pass, and the next one after it. Both compute the same, and together they tell the
seconds of computing alone, of the exchange alone, and how much of the exchange the computing hides. After some steps
every candidate exchanges copies of the present gradients, in turn. That changes neither the training nor the optimizer,
and it takes the seconds that the candidate needs with this model, this link and these ranks. The step of a candidate is
then

    the longest computing of any rank  +  the seconds of the candidate's exchange

and the computing hides as much of an exchange in 16 bits as of the dense one, in proportion. Deep Gradient Compression
sends more in its warm-up, so its exchange is tried in each stage. The time of the whole training counts: the mean of
the steps that are left, where a session knows their number, and of the next 10,000 where none does.

A candidate that cannot be chosen any more makes no exchange: none does where the dense step is hardly longer than its
computing, and none of half the dense bytes or more where another candidate saves far more than half of the waiting.

All ranks know all measurements, so they choose the same candidate. It takes part from the next backward pass on. A
checkpoint holds the choice, and a resumed run keeps it where it is still permitted. A run that is resumed from before
the choice, or without permission for it, measures anew.

In an elastic job the ranks of a new round measure anew, and begin where one of them knows a choice already: a process
that is lost while they choose may leave some with the choice and some without. The step before it is not lost then,
because its exchange is over.

Once servers are chosen, the small exchanges go by way of them too, so that a worker or server that dies is replaced
alone. The successor of a worker knows the choice: before it no worker is replaced.

Servers are no candidate where the script changes gradients between the backward pass and the optimizer's step: there
they would be each worker's own.

A model with sparse gradients is trained with the servers from the first step on, since nothing else exchanges them.

Without servers and without that permission there is nothing to measure: allreduce is then the only strategy that
computes the update of dense synchronous training.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Union

import torch
from torch import nn, optim

from oarlock.train import errors, worlds
from oarlock.train.servers.model import rows
from oarlock.train.strategies import backward, changes, parameterservers, replicas
from oarlock.train.strategies.allreduce import AllReduce
from oarlock.train.strategies.parameterservers import ParameterServers
from oarlock.train.strategies.strategy import Exchanging
from oarlock.train.strategies.wholegradient import WholeGradient

DENSE = "none"
SERVERS = "ps"
LOSSY = ("bf16", "powersgd", "dgc")
CANDIDATES = (DENSE, SERVERS, *LOSSY)
"""Dense allreduce, parameter servers and the compressions to choose from, the most exact first."""
WARM_UP = 3
MEASURED = 8
"""Half of them make their exchange after the backward pass."""
ENOUGH_S = 1.0
"""So much waiting for gradients tells enough of a slow link: no more dense steps are made only to measure them."""
MOST_TRIES = 5
LONG_S = 0.4
"""A candidate makes no further exchange once its exchanges have taken so long together."""
HORIZON = 10_000
"""The steps that a choice is for, where no session knows how many are left."""
OVERLAPPING = ("bf16",)
"""The candidates whose exchange goes on during the backward pass, as the dense one does."""
LEAST_PART = {SERVERS: 0.5, "bf16": 0.5}
"""The part of the dense bytes that a host sends or receives at least: half the bytes of fp32 in 16 bits, and with
servers on hosts of their own every gradient once, where a ring sends it almost twice.
"""
MARGIN = 0.05
"""A more exact candidate is chosen, if its step takes at most so much longer than the shortest."""
Part = tuple[int, float]  # of a training: its number of steps, and the seconds of an exchange in it
Exchange = Union[AllReduce, WholeGradient, ParameterServers]  # evaluated, by a Python that may be 3.9


class Step(NamedTuple):
    """One dense step, in seconds, with its waiting for gradients. Where its exchange came after the backward pass, also
    the part until then: computing alone.
    """

    whole_s: float
    wait_s: float
    computing_s: float | None


class Measured(NamedTuple):
    """The measurements of one rank, in seconds: a dense step, its computing, and one exchange of each candidate, made
    while nothing is computed, as the mean of the training.
    """

    step_s: float
    computing_s: float
    exchange_s: Mapping[str, float]

    def with_exchange(self, kind: str, took_s: float) -> Measured:
        return self._replace(exchange_s={**self.exchange_s, kind: took_s})


def summed_up(steps: Sequence[Step]) -> Measured:
    """Return what these steps of one rank tell. Without a step whose exchange came after the backward pass, the waiting
    stands for the exchange.
    """
    plain = [one for one in steps if one.computing_s is None]
    step_s, wait_s = (statistics.median(getattr(one, part) for one in plain) for part in ("whole_s", "wait_s"))
    apart = [(one.computing_s, one.whole_s - one.computing_s) for one in steps if one.computing_s is not None]
    computing_s, dense_s = map(statistics.median, zip(*(apart or [(max(0.0, step_s - wait_s), wait_s)])))
    return Measured(step_s, computing_s, {DENSE: dense_s})


def predict(ranks: Sequence[Measured]) -> dict[str, float]:
    """Return the seconds of a step with each candidate that all ranks have measured.

    A rank that computes longer makes the others wait. So the shortest dense exchange is that of the link alone.
    """
    computing_s, added_s = _computing_and_waiting(ranks)
    dense_s = min(one.exchange_s[DENSE] for one in ranks)
    steps = {DENSE: computing_s + added_s}
    for kind in CANDIDATES[1:]:
        if all(kind in one.exchange_s for one in ranks):
            took_s = max(one.exchange_s[kind] for one in ranks)
            if kind in OVERLAPPING and dense_s > 0:
                took_s *= min(1.0, added_s / dense_s)
            steps[kind] = computing_s + took_s
    return steps


def mean(parts: Sequence[Part]) -> float:
    """Return the mean seconds of an exchange."""
    return sum(steps * took_s for steps, took_s in parts) / sum(steps for steps, _ in parts)


def least_parts(parameters: Iterable[torch.Tensor]) -> dict[str, float]:
    """Return LEAST_PART for parameters of these types: what is no longer than 16 bits, or complex, travels as it is."""
    whole = sent = 0
    for each in parameters:
        size = each.element_size()
        whole += each.numel() * size
        sent += each.numel() * (min(size, 2) if each.is_floating_point() else size)
    return {**LEAST_PART, "bf16": sent / max(1, whole)}


def may_win(kind: str, ranks: Sequence[Measured], parts: Mapping[str, float] = LEAST_PART) -> bool:
    """Return whether `choose` may return this candidate, which is not measured, by its bytes (`parts`, of the dense
    ones) and the others' steps.
    """
    computing_s, added_s = _computing_and_waiting(ranks)
    steps = predict(ranks)
    least_s = computing_s + added_s * parts.get(kind, 0.0)
    return steps[DENSE] > (1 + MARGIN) * computing_s and least_s <= (1 + MARGIN) * min(steps.values())


def _computing_and_waiting(ranks: Sequence[Measured]) -> tuple[float, float]:
    """Return the seconds of computing, and by how much the dense exchange makes a step longer."""
    computing_s = max(one.computing_s for one in ranks)
    return computing_s, max(0.0, max(one.step_s for one in ranks) - computing_s)


def choose(steps: Mapping[str, float]) -> str:
    """Return the most exact of the candidates that are hardly slower than the fastest."""
    most = (1 + MARGIN) * min(steps.values())
    return next(kind for kind in CANDIDATES if steps.get(kind, most + 1) <= most)


class Automatic(Exchanging):
    """The one of `kinds` that makes a step shortest. `make` returns a strategy by a candidate's name."""

    kind = "allreduce"
    keeps = True

    def __init__(self, make: Callable[[str], Exchange], kinds: Sequence[str]) -> None:
        self._world = worlds.init()
        self._make, self._kinds = make, kinds
        self._servers: ParameterServers | None = None  # connected, whether chosen or not
        dense = make(DENSE)
        assert isinstance(dense, AllReduce)
        dense.may_tune = False  # before the choice
        self._dense = dense  # which shares the model's buffers, whatever is chosen
        self._present: Exchange = dense
        self.rejoins = SERVERS not in kinds
        self.figures = self._present.figures
        self._kind = DENSE  # of `_present`
        self._chosen: str | None = None
        self._named: list[tuple[str, nn.Parameter]] = []
        self._optimizer: optim.Optimizer | None = None
        self._passes: backward.BackwardPass | None = None
        self._ended: tuple[float, float] | None = None  # the end of the last exchange, and all waiting until then
        self._steps: list[Step] = []
        self._waits_for_end = False  # the gradients of this pass are exchanged after it
        self._ready: list[int] = []  # such gradients
        self._computed: float | None = None  # the end of such a pass
        self._changes: changes.Changes | None = None  # looked for while servers may be chosen, and once they are
        self._changed = False  # the script changes gradients before its step
        self._looking: Any = None
        self._by_row: set[int] = set()  # the ids of parameters whose gradients are sparse
        self._needs_servers = False  # nothing else exchanges the gradients of this model

    def attach(self, model: nn.Module, optimizer: optim.Optimizer | None = None) -> nn.Module:
        self._named, self._optimizer = replicas.trained(model), optimizer
        if self._world.world_size > 1 or worlds.rounds is not None:
            self.parameters = [parameter for _, parameter in self._named]
        self._by_row = rows.sparse_parameters(model)
        several = optimizer is not None and self._world.world_size > 1
        self._needs_servers = bool(self._by_row) and several and SERVERS in self._kinds
        succeeds = worlds.exchanges is not None and worlds.exchanges.joins
        served = succeeds or self._needs_servers
        attached = self._dense.stand_by(model) if served else self._dense.attach(model, optimizer)
        if self._needs_servers and not succeeds:
            replicas.broadcast(model)
            self._say("parameter servers: the model has sparse gradients, which nothing else exchanges")
        self._passes = self._dense.passes
        if self._passes is not None:
            self._passes.listener = self
            if SERVERS in self._kinds and optimizer is not None:
                self._changes = changes.Changes(self.parameters)
                self._looking = optimizer.register_step_pre_hook(self._look)
        if served:
            self._chosen = SERVERS
            self._change()
        return attached

    def _look(self, *_: Any) -> None:
        """Notice gradients that the script has changed, before the optimizer steps."""
        if self._changes is None or not self._changes.found:
            return
        self._changed = True
        if isinstance(self._present, ParameterServers):
            why, then = (
                (
                    "for this model, because its gradients are sparse",
                    'Use Embedding(sparse=False), or strategy="ps" if that is meant',
                )
                if self._needs_servers
                else (
                    "since its choice, which was made of steps without such a change",
                    'Begin again, from the newest checkpoint, with strategy="allreduce"',
                )
            )
            raise errors.StateError(
                "the script has changed gradients between backward() and optimizer.step(), as clip_grad_norm_ does. "
                f'strategy="auto" uses parameter servers {why}: there they are each worker\'s own gradients, and not '
                f"the mean. {then}"
            )

    def begin(self) -> None:
        self._present.begin()

    def before_save(self) -> None:
        """Begin with a choice of this very step: it may have a size of buckets, which belongs to the checkpoint."""
        self._change()
        self._present.before_save()

    def after_step(self, step: int) -> None:
        super().after_step(step)
        if isinstance(self._present, ParameterServers):
            self._present.after_step(step)

    def no_sync(self) -> AbstractContextManager[None]:
        return self._present.no_sync()

    def finish(self, wish: int) -> None:
        self.complete_pass()
        self._present.finish(wish)

    @property
    def outlives(self) -> bool:
        return self._present.outlives

    @outlives.setter
    def outlives(self, outlives: bool) -> None:
        self._dense.outlives = self._present.outlives = outlives

    @property
    def lost(self) -> bool:  # type: ignore[override]  # an attribute elsewhere
        return self._dense.lost or self._present.lost

    def leave(self) -> None:
        self._present.leave()

    def regroup(self) -> None:
        self._dense.regroup()
        if self._present is not self._dense:
            self._present.regroup()
        self._ended, self._steps = None, []

    def flush(self, leaves: Sequence[bool]) -> None:
        self._present.flush(leaves)

    def shared(self) -> dict[str, Any]:
        return {"exchange": self._kind, "shared": self._present.shared()}

    def catch_up(self, shared: dict[str, Any], *, made: bool) -> None:
        if shared["exchange"] == self._kind:  # if not: the other rank changes at its next backward pass
            self._present.catch_up(shared["shared"], made=made)

    @property
    def replaced_alone(self) -> bool:
        return self._present.replaced_alone

    @property
    def takes_place(self) -> bool:
        return self._present.takes_place

    @property
    def version(self) -> int:
        return self._present.version

    def outlast(self, step: int, pack: Callable[[bool], bytes | None], keep_waiting: Callable[[], None]) -> None:
        self._present.outlast(step, pack, keep_waiting)

    def take_place(self, most: int) -> bytes:
        return self._present.take_place(most)

    def go_on_from(self, version: int) -> None:
        self._present.go_on_from(version)

    def choice(self) -> dict[str, Any]:
        return {**self._present.choice(), **({"exchange": self._chosen} if self._chosen else {})}

    def keep_choice(self, choice: Mapping[str, Any]) -> None:
        """Go on with this choice, if it is permitted. Parameter servers that the job no longer has, or that have
        another model, are allreduce, which does the same.
        """
        self._present.keep_choice(choice)
        if "exchange" not in choice or self._needs_servers:
            return
        chosen = str(choice["exchange"])
        if chosen == SERVERS and not (SERVERS in self._kinds and parameterservers.are_free()):
            chosen = DENSE
        if chosen not in (DENSE, *self._kinds):
            self._say(f"the checkpoint was made with {_words(chosen)}, which is not permitted now: measuring anew")
            return
        self._chosen = chosen
        self._say(f"{_words(self._chosen)}, as chosen before")
        before = self._present
        self._change()
        if self._present is not before:
            self._present.keep_choice(choice)

    def state_dict(self) -> dict[str, Any]:
        return self._present.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state and self._kind in (DENSE, SERVERS):
            self._say(
                "the checkpoint was made with a compression that is not in use now: the gradients that the compression "
                "kept back are dropped"
            )
        elif state:
            self._present.load_state_dict(state)

    def inherit(self, chiefs: dict[str, Any], states: Iterable[dict[str, Any]], ranks: int) -> bool:
        return bool(chiefs) and self._present.inherit(chiefs, states, ranks)

    def pass_began(self) -> None:
        self.complete_pass()
        self._change()
        self._ready.clear()
        self._computed = None
        self._waits_for_end = self._chosen is None and _apart(len(self._steps))
        if not isinstance(self._present, ParameterServers):
            self._present.pass_began()

    def gradient_ready(self, index: int) -> None:
        if self._waits_for_end:
            self._ready.append(index)
        elif not isinstance(self._present, ParameterServers):
            self._present.gradient_ready(index)

    def pass_ended(self) -> None:
        if self._waits_for_end:
            self._computed = self._now()
            for index in self._ready:
                self._dense.gradient_ready(index)
        if not isinstance(self._present, ParameterServers):
            self._present.pass_ended()
        self._exchanged()
        if self._changes is not None:
            self._changes.mark()

    def complete_pass(self) -> bool:
        if isinstance(self._present, ParameterServers) or not self._present.complete_pass():
            return False
        self._exchanged()
        return True

    def _exchanged(self) -> None:
        """Measure the step whose exchange is over, and choose when enough is known. All ranks call it for each one."""
        if self.lost or self._chosen is not None or self._world.world_size == 1 or self.figures is None:
            return
        now, waited_s = self._now(), self.figures.waiting.total_s
        if self._ended is not None:
            began, waited_before_s = self._ended
            computing_s = None if self._computed is None else self._computed - began
            self._steps.append(Step(now - began, waited_s - waited_before_s, computing_s))
        self._ended = now, waited_s
        if self._steps:
            try:
                if self._knows_enough():
                    self._decide()
            except errors.PeersLost:  # the exchange of this step is over, so the step counts
                if not self.outlives:
                    raise

    def _knows_enough(self) -> bool:
        """Return whether all ranks have measured enough dense steps. A rank that waits for a late one tells nothing of
        the link, so the shortest waiting counts.
        """
        if len(self._steps) >= WARM_UP + MEASURED:
            return True
        return min(self._world.gather(sum(one.wait_s for one in self._steps))) >= ENOUGH_S

    def _decide(self) -> None:
        """Measure the candidates that may be chosen, the least exact first, and choose one with all ranks."""
        own = summed_up(self._steps[WARM_UP:] or self._steps[-1:])
        told = [Measured(*each) for each in self._world.gather(tuple(own))]
        parts = least_parts(parameter for _, parameter in self._named)
        left = self._world.gather(self.steps_left)
        horizon = max(1, min(HORIZON if steps is None else steps for steps in left))
        changing = {}
        for kind in sorted(self._permitted(), key=CANDIDATES.index, reverse=True):
            if may_win(kind, told, parts):
                everyones = self._world.gather(self._try(kind, horizon))
                if None not in everyones:
                    told = [one.with_exchange(kind, mean(took)) for one, took in zip(told, everyones)]
                    if len(everyones[0]) > 1:
                        changing[kind] = [max(one[part][1] for one in everyones) for part in (0, -1)]
        steps = predict(told)
        self._chosen = choose(steps)
        size = sum(parameter.numel() * parameter.element_size() for _, parameter in self._named)
        computing_s, added_s = _computing_and_waiting(told)
        known = []
        for kind, took_s in steps.items():
            known.append(f"{kind} {took_s * 1e3:.3g} ms")
            if kind in changing:
                first, last = (f"{(computing_s + one) * 1e3:.3g} ms" for one in changing[kind])
                known[-1] += f" ({first} at first, {last} at last)"
        self._say(
            f"{_words(self._chosen)} from now on. {self._world.world_size} ranks waited {added_s * 1e3:.3g} ms a step "
            f"for {size / 1e6:.3g} MB of gradients; expected steps, as the mean of {horizon:,}: {', '.join(known)}"
        )
        if self._chosen == SERVERS:  # which write into the weights: not in the middle of a backward pass
            self._change()

    def _permitted(self) -> list[str]:
        """Return the candidates of all ranks: without servers, where the script changes gradients on one of them."""
        kinds = list(self._kinds)
        if SERVERS in kinds and any(self._world.gather(self._changed)):
            kinds.remove(SERVERS)
            self._say(
                "parameter servers cannot be used: the script changes gradients between backward() and "
                "optimizer.step(), and there they would be each worker's own"
            )
        return kinds

    @torch.no_grad()
    def _try(self, kind: str, horizon: int) -> list[Part] | None:
        """Return the seconds of an exchange in each part of a training of so many steps, one exchange in all but the
        last part. None for a candidate that this rank, or all ranks, cannot use.
        """
        made = self._of(kind)
        held = [(parameter, parameter.grad) for _, parameter in self._named]
        parts: list[Part] = []
        try:
            if self._is_ready(kind, made):
                stages = made.stages(horizon) if isinstance(made, WholeGradient) else [(0, horizon)]
                for exchanges, steps in stages:
                    if isinstance(made, WholeGradient):
                        made.enter(exchanges)
                    most = MOST_TRIES if exchanges == stages[-1][0] else 1
                    parts.append((steps, self._seconds(kind, made, held, most)))
        finally:
            for parameter, gradient in held:
                parameter.grad = gradient
            made.drop()
        usable = bool(parts) and all(math.isfinite(took_s) for _, took_s in parts)
        if not usable and isinstance(made, ParameterServers):
            made.abandon()
            self._servers = None
        return parts if usable else None

    def _seconds(
        self, kind: str, made: Exchange, held: Sequence[tuple[nn.Parameter, torch.Tensor | None]], most: int
    ) -> float:
        """Return the median seconds of at most so many exchanges, infinitely many where one fails."""
        took = [self._once(kind, made, held)]
        while len(took) < most and max(self._world.gather(sum(took))) < LONG_S:
            took.append(self._once(kind, made, held))
        return statistics.median_low(took) if math.isfinite(max(took)) else math.inf

    def _once(self, kind: str, made: Exchange, held: Sequence[tuple[nn.Parameter, torch.Tensor | None]]) -> float:
        """Return the seconds of one exchange of copies of the gradients, infinitely many where it fails."""
        for parameter, gradient in held:
            copied = torch.zeros_like(parameter) if gradient is None else gradient.clone()
            parameter.grad = copied.contiguous()
        began = self._now()
        try:
            made.rehearse()
        except (errors.StateError, errors.ServerError) as cause:
            sys.stderr.write(f"oarlock.train: {_words(kind)} cannot be used: {cause}\n")
            if isinstance(made, ParameterServers):
                made.abandon()  # other ranks may wait for this one's gradient
            return math.inf
        return self._now() - began

    def _is_ready(self, kind: str, made: Exchange) -> bool:
        """Prepare a candidate. Return whether all ranks could: none may begin an exchange that another one lacks."""
        failed = None
        try:
            made.try_on(self._named, self._optimizer)
        except (errors.StateError, errors.ServerError) as cause:
            failed = str(cause)
        reasons = [reason for reason in self._world.gather(failed) if reason is not None]
        if reasons:
            self._say(f"{_words(kind)} cannot be used: {reasons[0]}")
        return not reasons

    def _now(self) -> float:
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        return time.monotonic()

    def _change(self) -> None:
        """Let the chosen exchange take the place of the present one."""
        if self._chosen is None:
            return
        self._dense.may_tune = True
        if self._chosen != self._kind:
            if self._chosen == SERVERS:
                worlds.meet_at_servers()
            made = self._of(self._chosen)
            made.take_over(self._named, self._optimizer, self.figures)
            if not isinstance(made, ParameterServers) and self._passes is not None:  # alone, it may follow them itself
                made.passes = self._passes
            made.outlives = self.outlives
            self._present, self._kind = made, self._chosen
            self._dense.let_go()
        if self._passes is not None and not isinstance(self._present, ParameterServers):
            self._changes = None
            if self._looking is not None:
                self._looking.remove()
                self._looking = None
            self._passes.listener = self._present  # from now on as without a choice: each pass is told to it alone

    def _of(self, kind: str) -> Exchange:
        if kind != SERVERS:
            return self._make(kind)
        if self._servers is None:
            made = self._make(kind)
            assert isinstance(made, ParameterServers)
            made.send_by_row(self._by_row)
            self._servers = made
        return self._servers

    def _say(self, text: str) -> None:
        if self._world.is_chief:
            sys.stderr.write(f"oarlock.train: {text}\n")


def _apart(measured: int) -> bool:
    """Return whether the step after so many measured ones makes its exchange after the backward pass."""
    return measured > WARM_UP and (measured - WARM_UP) % 2 == 1


def _words(kind: str) -> str:
    return {DENSE: "dense allreduce", SERVERS: "parameter servers"}.get(kind, f"allreduce with compression {kind}")
