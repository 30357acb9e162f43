"""The part of the model that one parameter server holds: weights, optimizer, version, and the rules of an update.

Threads of many workers call the methods; one condition guards everything.

The mean is taken in the order of the ranks, and each gradient is divided before the sum, as in allreduce. So a run can
be repeated bit by bit, and two workers get the bits of allreduce.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn, optim

from oarlock.train.measuring import noise
from oarlock.train.servers.model import openings, optimizers, rows, shares
from oarlock.train.servers.process import layouts, paces, pushes, showing, skips, standby
from oarlock.train.servers.wire import bodies, frames

BACK_WITHIN_S = 10.0
"""For so long a restored server waits for workers that might hold newer weights."""

_NOTHING = shares.Told()


@dataclass
class Shard:
    """The state of one server. `version` counts the updates."""

    opening: openings.Opening
    device: torch.device
    version: int = 0
    loaded: bool = False  # whether it has weights yet
    changed: threading.Condition = field(default_factory=threading.Condition)  # its lock may be taken again

    def __post_init__(self) -> None:
        self.layout = layouts.Layout(self.opening, self.device)
        self.weights = self.layout.buffers(self.device)
        self._means = self.layout.buffers(self.device, by_row=False)
        self._optimizer: optim.Optimizer | None = None
        self._settings: list[Mapping[str, Any]] = []
        self._parameters = [nn.Parameter(each) for each in self.layout.pieces(self.weights)]
        self._gradients = list(self.layout.pieces(self._means))
        self._by_row = self.layout.by_row
        # The version at which each row was changed.
        self._changed_at = {index: torch.zeros(shape[0], dtype=torch.int64) for index, shape in self._by_row.items()}
        self._pending: dict[int, pushes.Push] = {}
        counted = 0 if self.opening.mode.elastic else self.opening.mode.workers
        self.clocks = dict.fromkeys(range(counted), 0)  # the gradients taken of each worker
        self.shares = shares.Shares()  # of workers that come and go
        self.paces = paces.Paces()
        self._skips = skips.Skips()
        self._seen: set[int] = set()  # those of them that were here
        self._passed_over: dict[int, int] = {}  # the steps that a worker was absent for, which count as its own
        self._gone: set[int] = set()  # workers that train no more
        self._ended: set[int] = set()  # those of them that have said so
        mode = self.opening.mode
        self._standby: standby.Standby | None = None  # where weights and state outlive this process
        self._is_changing = False
        self._showing = None if mode.rounds else showing.of(self.opening, self.device, mode.workers)
        self._shown = False  # whether the weights lie in memory that workers see
        self._was_read = False  # whether a worker may be reading there
        self._failed = ""
        self._error: type[frames.Refused] = frames.Refused  # of a step that lacks a worker
        self._round, self._workers = 0, mode.workers
        self._whole: dict[int, pushes.Push] = {}  # all gradients of the next update, which waits for `commit`
        # The last update that was measured: its version, the number of gradients, the mean of their squared norms,
        # and the squared norm of their mean.
        self.norms: tuple[int, int, float, float] | None = None
        self._lives: dict[int, int] = {}  # how often each worker has died while the others waited
        self._expected: set[int] = set()  # workers that have yet to come back after a restart
        self._expected_until = 0.0

    def begin_round(self, number: int, workers: int) -> None:
        """Go on with other workers. Each has its own gradient of the next update to give, none of which is here."""
        with self.changed:
            self.hide()
            self._round, self._workers = number, workers
            self.clocks, self._gone = dict.fromkeys(range(workers), 0), set()
            self._failed, self._error = "", frames.RoundOver
            self._pending.clear()
            self._whole = {}
            self._skips = skips.Skips()
            self._expected = set(self.clocks) if time.monotonic() < self._expected_until else set()
            self._showing = showing.of(self.opening, self.device, workers)
            self.changed.notify_all()

    def offered(self, rank: int, beside: int | None) -> dict[str, str] | None:
        """Offer the memory of the weights to a worker that has memory of `beside` bytes for its bodies. None: it shares
        no memory.
        """
        with self.changed:
            offer = None
            if self._showing is not None:
                offer = self._showing.offered(rank, beside) if beside is not None else None
                if offer is None:
                    self.answered(rank, sees=False)
            return offer

    def answered(self, rank: int, *, sees: bool) -> None:
        """Take note of the worker's answer. After the last one the weights move to memory that the workers see."""
        with self.changed, self._changing():
            keep_as = self._standby.name_beside() if self._standby is not None else None
            found = self._showing.answer(rank, sees=sees, keep_as=keep_as) if self._showing is not None else None
            if found is not None:
                with contextlib.suppress(ValueError):  # a type's numbers would not lie at multiples of their size
                    self._move(bodies.tensors(torch.frombuffer(found, dtype=torch.uint8), self.weights))
                    self._shown = True

    def hide(self) -> None:
        """Go on with weights in memory of this process. Workers that still read those in shared memory may do so."""
        with self.changed:
            if self._showing is not None:
                self._showing.close()
            if self._shown:
                with self._changing():
                    self._move([torch.empty_like(flat) for flat in self.weights])
                    self._shown = False

    def keep(self, kept: standby.Standby) -> None:
        """Keep weights and state in memory that outlives this process, from now on."""
        self._standby = kept
        with self.changed, self._changing():
            pass

    def let_go(self) -> None:
        """Remove what is kept for a successor, until weights or state change again."""
        with self.changed:
            if self._standby is not None:
                self._standby.forget()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Change weights or state. A server that dies meanwhile leaves the version before the change."""
        kept = self._standby
        if kept is None or self._is_changing:
            yield
            return
        kept.begin()
        self._is_changing = True
        try:
            yield
        finally:
            self._is_changing = False
        if self.loaded and self._keeps_state():
            state = optimizers.slots_of(self._optimizer, self._parameters) if self._optimizer else []
            self._point(kept.end(self.version, self._words(), self.weights, state, seen=self._shown))
        elif self.loaded:
            kept.forget()

    @torch.no_grad()
    def _move(self, flats: pushes.Flats) -> None:
        """Move the weights to this memory."""
        for ours, theirs in zip(flats, self.weights):
            ours.copy_(theirs)
        self._point(flats)

    def _point(self, flats: pushes.Flats) -> None:
        """Take the weights in this memory for those of the parameters."""
        if flats is self.weights:
            return
        self.weights = flats
        for parameter, piece in zip(self._parameters, self.layout.pieces(flats)):
            parameter.data = piece

    def join(self, rank: int, told: shares.Told = _NOTHING) -> int:
        """Count this worker among those that train. Return the number of steps that it has behind it.

        Under bounded staleness, one that comes back takes the place of the slowest, so that no other waits for it.
        What it has `told` counts where workers come and go.
        """
        with self.changed:
            if self.opening.mode.elastic:
                self._take_in(rank, told)
            self._skips.forget(rank)
            came_back = rank in self._gone
            self._gone.discard(rank)
            self._ended.discard(rank)
            if came_back and self.opening.mode.staleness is not None:
                others = [self._steps(other) for other in self.clocks if other not in self._gone | {rank}]
                behind = max(0, min(others, default=0) - self._steps(rank))
                if self.opening.mode.elastic:
                    self.clocks[rank] += behind
                else:
                    self._passed_over[rank] = self._passed_over.get(rank, 0) + behind
            return self.version if self.opening.mode.sync else self._steps(rank)

    def _take_in(self, rank: int, told: shares.Told) -> None:
        """Give a new worker a share of the steps that no other has begun."""
        self.shares.take(told.divisions)
        steps = told.steps
        if not told.began:
            self.shares.begin(range(told.workers))
        elif rank not in self.shares.present and not steps:
            steps = self.shares.change({*self.shares.present, rank}, self._begun_by_some())
        self.clocks[rank] = max(self.clocks.get(rank, 0), steps)
        self._seen.add(rank)
        self._forget_leavers()

    def _forget_leavers(self) -> None:
        """Do not wait for workers that have left while this server was restored."""
        self._gone |= self.clocks.keys() - self._seen - set(self.shares.present)

    def _begun_by_some(self) -> int:
        """Return the last step that a worker may have begun."""
        if self.opening.mode.sync:
            return self.version + 1
        return max(self.clocks.values(), default=0) + 1

    def part(self, rank: int) -> int:
        """Divide the data among the others. Return the last step in which this worker has a share."""
        with self.changed:
            last = self.shares.last_of(rank)
            if last is None:
                last = self.shares.change({*self.shares.present} - {rank}, self._begun_by_some())
            return last

    def learn(self, divisions: Any) -> None:
        """Take the divisions of the data that a worker knows where they are more."""
        with self.changed:
            if self.opening.mode.elastic and self.shares.take(divisions):
                self._update()

    def taken(self) -> dict[int, int]:
        """Return the number of gradients that were taken of each worker, where each is an update of its own."""
        with self.changed:
            left = self._gone - set(self.shares.present) if self.opening.mode.elastic else set()
            return {} if self.opening.mode.sync else {rank: self.clocks[rank] for rank in self.clocks.keys() - left}

    def is_back(self, rank: int) -> None:
        """Take note that this worker has told the version of its weights."""
        with self.changed:
            self._expected.discard(rank)
            self.changed.notify_all()

    def leave(self, rank: int, *, failed: str = "") -> None:
        """Take note that the worker trains no more. In lockstep, a `failed` one fails the steps of all others."""
        with self.changed:
            self.hide()
            self._gone.add(rank)
            self.paces.forget(rank)
            if not failed:
                self._ended.add(rank)
            self._pending.pop(rank, None)
            if failed and self.opening.mode.lockstep and self._workers > 1:
                self._failed = self._failed or failed
            else:
                self._update()
            self.changed.notify_all()

    def await_successor(self, rank: int) -> None:
        """Take note that the worker has died, and that the others wait for its successor in lockstep.

        Its gradient of a step that is not made is dropped: other servers may lack it.
        """
        with self.changed:
            self.hide()  # it may live on unseen, and read
            self._pending.pop(rank, None)
            self._lives[rank] = self.life(rank) + 1
            self.changed.notify_all()

    def compare(self, rank: int, base: int, skipped: Any, *, steps: bool) -> None:
        """Refuse workers in lockstep that do not step together (`Skips.compare`), also those who wait."""
        with self.changed:
            why = self._skips.compare(rank, base, skipped, steps=steps)
            if why and not self._failed:
                self._failed, self._error = why, frames.Refused
            if why or (self._failed and not steps):
                self.changed.notify_all()
                raise self._error(self._failed)

    def measures(self, base: int) -> bool:
        """Return whether the norms of the update after this version are measured. A single gradient has no mean."""
        return self.opening.mode.sync and base % noise.EVERY == 0

    def life(self, rank: int) -> int:
        """Return the number of deaths of this worker, or its round. A gradient of an earlier one is refused."""
        return self._round or self._lives.get(rank, 0)

    def await_version(self, rank: int, version: int) -> None:
        """Wait until so many updates are made, or all others have ended their training."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.version >= version or self._ended >= self.clocks.keys() - {rank} or self._is_over()
            )

    def is_over(self) -> bool:
        """Return whether no worker trains any more."""
        with self.changed:
            return self._is_over()

    def await_end(self) -> None:
        """Wait until no worker trains any more."""
        with self.changed:
            self.changed.wait_for(self._is_over)

    def _is_over(self) -> bool:
        return bool(self.clocks) and self._gone >= self.clocks.keys()

    def load(self, flats: pushes.Flats, version: int, settings: Sequence[Mapping[str, Any]]) -> None:
        """Take these weights. The optimizer begins anew unless its state is loaded after this."""
        with self.changed, self._changing():
            if self._was_read:
                self.hide()
            for ours, theirs in zip(self.weights, flats):
                ours.copy_(theirs)
            self._make_optimizer(settings)
            self._take_version(version)
            self.loaded = True
            self._pending.clear()
            self.changed.notify_all()

    def read(self, rank: int, into: pushes.Flats) -> tuple[int, dict[int, int], bool]:
        """Copy the weights, unless this worker sees them. Return their version, the number of gradients of each worker
        that are in them, and whether the worker is to read them in the shared memory.
        """
        with self.changed:
            shown = self._read(rank, into)
            return self.version, self.taken(), shown

    def push(
        self, rank: int, push: pushes.Push, into: pushes.Flats
    ) -> tuple[int, dict[int, int], bool, dict[int, rows.Rows]]:
        """Take part in the next update. Copy the weights after it, as `read` does. Return the same, and the rows that
        were changed since the worker's version, of the pieces that travel by row.

        A gradient that was taken before comes again where its answer was lost: it changes nothing.
        """
        mode = self.opening.mode
        with self.changed:
            if not self.loaded:
                raise frames.Refused("a gradient came before the weights")
            # An update before the newest weights are back would be lost with them.
            self.changed.wait_for(lambda: not self._expected, timeout=max(0.0, self._expected_until - time.monotonic()))
            self._expected.clear()
            if mode.sync:
                if push.life != self.life(rank):
                    raise self._error(f"worker {rank} was replaced")
                made = self._is_made(rank, push)
                if self._failed and not made:
                    raise self._error(self._failed)
                if not made:
                    self._pending[rank] = push
                    self._update()
                self.changed.wait_for(lambda: self._failed or self._pending.get(rank) is not push)
                made = self._is_made(rank, push)
                if push.life != self.life(rank) and not made:  # it lives on without an exchange
                    raise self._error(f"worker {rank} was replaced")
                if push.hold and made:
                    return self.version, {}, True, {}
            else:
                if not push.number or push.number > self.clocks[rank]:
                    with self._changing():
                        if failed := self._step([push]):
                            raise frames.Refused(failed)
                        self.clocks[rank] = max(self.clocks[rank] + 1, push.number)
                    self.changed.notify_all()
                self.changed.wait_for(lambda: self._failed or self._is_near(rank))
            if self._failed and not (mode.sync and push.base < self.version):  # a step that is made is answered
                raise self._error(self._failed)
            return self._answer(rank, into, -1 if push.all_rows else push.base)

    def commit(
        self, rank: int, base: int, into: pushes.Flats, *, all_rows: bool
    ) -> tuple[int, dict[int, int], bool, dict[int, rows.Rows]]:
        """Make the update of the held gradients, unless it is made. Return what `push` returns."""
        with self.changed:
            if base >= self.version:
                if not self._whole:
                    raise frames.Refused(self._failed or f"the gradients of version {base} are not here")
                self._make(self._whole)
                self._whole = {}
                self.changed.notify_all()
                if base >= self.version:
                    raise frames.Refused(self._failed)
            return self._answer(rank, into, -1 if all_rows else base)

    def _is_made(self, rank: int, push: pushes.Push) -> bool:
        """Return whether the update is made or held: the others did not wait for this gradient, or have it."""
        held = self._whole.get(rank)
        return push.base < self.version or (held is not None and (held.base, held.life) == (push.base, push.life))

    def _answer(
        self, rank: int, into: pushes.Flats, since: int
    ) -> tuple[int, dict[int, int], bool, dict[int, rows.Rows]]:
        shown = self._read(rank, into, whole=not self._by_row)
        return self.version, self.taken(), shown, self._changed(since)

    def resume(
        self,
        flats: pushes.Flats,
        version: int,
        settings: Sequence[Mapping[str, Any]],
        taken: Mapping[int, int] | None = None,
    ) -> None:
        """Take a worker's weights where they are newer than those of the checkpoint. The optimizer keeps its state.

        `taken` says how many gradients of each worker are in these weights.
        """
        with self.changed, self._changing():
            if taken and taken.keys() != self.clocks.keys() and not self.opening.mode.elastic:
                raise frames.Refused("the gradients taken are those of another number of workers")
            if not self.loaded or version > self.version:
                self.clocks.update(taken or {})
                if self.opening.mode.elastic:
                    self._forget_leavers()
            if not self.loaded:
                self.load(flats, version, settings)
                if version and self._keeps_state():
                    sys.stderr.write(
                        f"oarlock.train: the weights are those of version {version}, but there is no checkpoint of "
                        "this server: its optimizer's state begins anew\n"
                    )
            elif version > self.version:
                if self._keeps_state():
                    sys.stderr.write(
                        f"oarlock.train: the weights are those of version {version}, and the optimizer's state is that "
                        f"of version {self.version}\n"
                    )
                if self._was_read:
                    self.hide()
                for ours, theirs in zip(self.weights, flats):
                    ours.copy_(theirs)
                self._take_version(version)
                self._pending = {rank: push for rank, push in self._pending.items() if push.base >= version}
            self.changed.notify_all()

    def saved(self) -> dict[str, Any]:
        """Return all that `restore` needs."""
        with self.changed:
            entries, tensors = self.state()
            weights = [flat.detach().to("cpu", copy=True) for flat in self.weights]
            told = {**self._words(), "version": self.version, "entries": json.dumps(entries)}
            return {**told, "weights": weights, "tensors": tensors}

    def _words(self) -> dict[str, Any]:
        """Return the plain values that `restore` needs, beside the version and the state."""
        counts = {"clocks": dict(self.clocks), "gone": sorted(self._gone), "passed_over": dict(self._passed_over)}
        return {"settings": json.dumps(self._settings), **counts, "shares": self.shares.fields()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take the state that `saved` returned. The next update waits until every worker has come back."""
        with self.changed, self._changing():
            self.load(saved["weights"], int(saved["version"]), json.loads(saved["settings"]))
            self.load_state(json.loads(saved["entries"]), saved["tensors"])
            self.clocks, self._gone = dict(saved["clocks"]), set(saved["gone"])
            self._passed_over = dict(saved["passed_over"])
            self.shares.take(saved["shares"])
            self._expected = set(self.clocks) - self._gone
            self._expected_until = time.monotonic() + BACK_WITHIN_S

    def state(self) -> tuple[list[list[Any]], list[torch.Tensor]]:
        """Return the optimizer's state: an entry [piece, name, type, shape, value] for each, and the tensors' values.

        An entry whose type is None is the plain value.
        """
        with self.changed:
            return optimizers.state_of(self._optimizer, self._parameters) if self._optimizer else ([], [])

    def load_state(self, entries: Sequence[Sequence[Any]], tensors: Sequence[torch.Tensor]) -> None:
        """Take the state that `state` returned. Raises Refused where it does not fit."""
        with self.changed, self._changing():
            if self._optimizer is not None:
                optimizers.load_state(self._optimizer, self._parameters, entries, tensors, self.device)

    def _keeps_state(self) -> bool:
        return self.opening.optimizer != "SGD" or any(group.get("momentum") for group in self._settings)

    def _make_optimizer(self, settings: Sequence[Mapping[str, Any]]) -> None:
        members: list[list[nn.Parameter]] = [[] for _ in settings]
        for piece, parameter in zip(self.opening.pieces, self._parameters):
            if piece.group >= len(members):
                raise frames.Refused("a parameter belongs to a group that has no settings")
            members[piece.group].append(parameter)
        self._here = [number for number, some in enumerate(members) if some]
        self._settings = list(settings)
        self._optimizer = optimizers.build(self.opening.optimizer, settings, members) if self._here else None

    def _update(self) -> None:
        """Make the update for which enough gradients are there."""
        mode = self.opening.mode
        members = set(self.shares.workers_of(self.version + 1) if mode.elastic else range(self._workers))
        needed = max(1, min(len(members) - mode.backup, len(members - self._gone)))
        found = self._pending
        if mode.elastic and members - self._gone:  # one that leaves may be a step behind on another server
            found = {rank: push for rank, push in found.items() if rank in members}
        if len(found) < needed:
            return
        self._pending = {}
        if any(push.hold for push in found.values()):
            self._whole = found
        else:
            self._make(found)
        self.changed.notify_all()

    def _make(self, given: Mapping[int, pushes.Push]) -> None:
        """Make the update of these gradients."""
        if failed := self._step([push for _, push in sorted(given.items())]):
            self._failed, self._error = failed, frames.Refused

    def _step(self, given: Sequence[pushes.Push]) -> str:
        """Apply the gradients. Return why that failed, empty where it did not."""
        try:
            self._apply(given)
        except (AssertionError, RuntimeError, TypeError, ValueError, KeyError, IndexError) as cause:
            return f"the step of the optimizer failed: {cause}"
        return ""

    @torch.no_grad()
    def _apply(self, given: Sequence[pushes.Push]) -> None:
        """Step with the mean of these gradients, which are changed. A piece that none of them has stays as it is."""
        settings = given[0].settings
        if self._optimizer is not None and settings and settings != self._settings:
            optimizers.change(self._optimizer, [settings[number] for number in self._here])
            self._settings = list(settings)
        alone = len(given) == 1 and self.device.type == "cpu"
        for mean, *gradients in zip() if alone else self.layout.dense(self._means, *(push.gradients for push in given)):
            torch.div(gradients[0].to(mean.device), len(given), out=mean)
            for gradient in gradients[1:]:
                mean.add_(gradient.to(mean.device).div_(len(given)))
        nowhere = frozenset.intersection(*(push.absent for push in given))
        gradients = self.layout.pieces(given[0].gradients) if alone else self._gradients
        means: list[rows.Rows] = []
        for index, (parameter, gradient) in enumerate(zip(self._parameters, gradients)):
            if index in self._by_row and index not in nowhere:
                some = [push.rows[index] for push in given if index in push.rows]
                gradient = rows.mean(some, len(given), self._by_row[index], self.device)
                means.append(rows.Rows(gradient.indices()[0], gradient.values()))
                self._note(index, means[-1].numbers)
            parameter.grad = None if index in nowhere else gradient
        self._measure([push.squared_norm for push in given], means)
        with self._changing():
            if self._optimizer is not None:
                with rows.unchecked() if self._by_row else contextlib.nullcontext():
                    self._optimizer.step()
            self.version += 1

    def _measure(self, norms: Sequence[float | None], means: Sequence[rows.Rows]) -> None:
        """Take the norms of the next update, which has these rows beside the mean in memory."""
        known = [each for each in norms if each is not None]
        if len(known) == len(norms) > 1:
            of_mean = pushes.squared_norm(self._means, means)
            self.norms = self.version + 1, len(known), sum(known) / len(known), of_mean

    def _note(self, index: int, numbers: torch.Tensor) -> None:
        """Note that the next version changes these rows, or all rows."""
        if rows.is_rowwise(self.opening.optimizer, self._settings):
            self._changed_at[index][numbers.cpu()] = self.version + 1
        else:
            self._changed_at[index].fill_(self.version + 1)

    def _changed(self, since: int) -> dict[int, rows.Rows]:
        """Return the rows that were changed after this version."""
        found = {}
        weights = list(self.layout.pieces(self.weights)) if self._by_row else []
        for index in self._by_row:
            numbers = (self._changed_at[index] > since).nonzero().view(-1)
            found[index] = rows.Rows(numbers, weights[index].detach()[numbers.to(self.device)].cpu())
        return found

    def _take_version(self, version: int) -> None:
        """All weights are those of this version now."""
        self.version = version
        for changed_at in self._changed_at.values():
            changed_at.fill_(version)

    def _read(self, rank: int, into: pushes.Flats, *, whole: bool = True) -> bool:
        """Copy the weights, and return False, or return True where this worker sees them. Unless `whole`, leave out the
        pieces that travel by row.
        """
        if self._shown and self._showing is not None and self._showing.is_seen(rank):
            self._was_read = True
            return True
        for theirs, ours in zip(into, self.weights) if whole else self.layout.dense(into, self.weights):
            theirs.copy_(ours)
        return False

    def _is_near(self, rank: int) -> bool:
        """Return whether this worker is not too far ahead of the slowest one that still trains."""
        allowed = self.opening.mode.staleness
        if allowed is None or rank in self._gone:
            return True
        return self._steps(rank) - min(self._steps(one) for one in self.clocks if one not in self._gone) <= allowed

    def _steps(self, rank: int) -> int:
        return self.clocks[rank] + self._passed_over.get(rank, 0)
