"""The session of a training run, which its script uses.

    with train.Session(model=model, optimizer=optimizer, batches=batches) as session:
        for x, y in session.steps(batches, epochs=5):
            ...                                  # forward, backward, optimizer.step()
            session.log(loss=loss)

On entry the state is restored from the newest valid checkpoint, or every rank gets the chief's initial weights. At each
step boundary the ranks agree whether to save and whether to stop (agreement.py). SIGTERM to any rank is a request to
stop: all ranks finish the same step, save it, close, and end with exit code 143, as after a SIGTERM. An error in the
body ends the session without a checkpoint and without another exchange, because the other ranks may be at any point.
In an elastic job, processes join and leave between two steps (membership.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

import torch
from torch import nn

from oarlock.train import agreement, batchsizes, behind, environment, errors, membership, stopping, succession, worlds
from oarlock.train.batches import Batches
from oarlock.train.batchsizes import Batch
from oarlock.train.checkpointing import contents, manifests, opening
from oarlock.train.checkpointing.checkpoints import Checkpoints, Restored, Saved
from oarlock.train.measuring import pace, straggling
from oarlock.train.moments import Hook
from oarlock.train.reporting.progress import Line
from oarlock.train.reporting.reports import VERSION, Reports, opened
from oarlock.train.reporting.tensorboard import EventFile
from oarlock.train.strategies import dataparallel, replicas
from oarlock.train.strategies.strategy import Strategy, figures_of, tell_steps_left, waited

EVERY_S = 600.0
KEEP = 3


class Session:
    """The session. It saves, restores and reports `state`: objects with state_dict and load_state_dict, by keyword.

    `checkpoints` is a directory that all ranks see. Every `every_s` seconds (600) or `every_steps` steps a checkpoint
    is made there, and the newest `keep` (3) are kept. The job's own settings (OARLOCK_CHECKPOINTS,
    OARLOCK_CHECKPOINT_EVERY_S, OARLOCK_CHECKPOINT_KEEP) win. Without a directory nothing is saved. Training goes on
    while a thread writes a copy of the state, which needs as much memory again. `total_steps` is the number of steps.
    `per_rank` is state that differs between ranks: another number of ranks cannot resume it, unless
    `drop_per_rank=True` lets them begin without it. `logdir` is the directory for TensorBoard's event files (default:
    OARLOCK_TENSORBOARD). `resume=False` begins at the first step. `adapt=True` lets the scheduler choose the batch
    size, if the job file allows it: the given `Batches` use it, `backward` and `accumulating` follow its parts, and
    `gain` gives the factor for the learning rate. Tensors that the ranks have divided (FSDP2, tensor parallelism) are
    saved in pieces, and any number of ranks resumes them. On entry, CheckpointError for a checkpoint that does not fit.
    """

    def __init__(
        self,
        *,
        checkpoints: str | os.PathLike[str] | None = None,
        every_s: float | None = None,
        every_steps: int | None = None,
        keep: int | None = None,
        total_steps: int | None = None,
        hooks: Sequence[Hook] = (),
        strategy: Strategy | None = None,
        per_rank: Mapping[str, Any] | None = None,
        drop_per_rank: bool = False,
        logdir: str | os.PathLike[str] | None = None,
        resume: bool = True,
        adapt: bool = False,
        **state: Any,
    ) -> None:
        contents.check({**state, **(per_rank or {})})
        self._environment = given = environment.Environment.read()
        self.world = worlds.init()
        self.step = 0  # steps done; within the body, the number of the present step, from 1
        self.total_steps = self._limit = total_steps
        self._state = state
        self._hooks, self._resume = tuple(hooks), resume
        self._readers = [hook for hook in hooks if type(hook).on_log is not Hook.on_log]
        self._batches = next((each for each in state.values() if isinstance(each, Batches)), None)
        named = {f"strategy of {name}": one for name, one in dataparallel.strategies_in(state).items()}
        alone = {"strategy": strategy} if strategy is not None else {}  # of no single model
        self._strategies = [*named.values(), *alone.values()]
        own = {**(per_rank or {}), **alone}
        own.update({name: one for name, one in named.items() if one.keeps or one.state_dict()})
        self._contents = contents.Contents(state, own, {**named, **alone}, self.world, self._say, drops=drop_per_rank)
        self._adapt, self._batch_file = adapt, batchsizes.BatchFile(given.report)
        self._words = batchsizes.Words()
        self._parts_left = 0  # parts of the present step that are left
        self._noise: float | None = None  # the same on every rank
        self._pace = pace.Pace()
        self._told = (0, 0.0, 0)  # exchanges, seconds of waiting and bytes, at the end of the last step
        self._data_s = 0.0  # waiting for batches, in this step
        self._straggler = straggling.Straggler()
        self.batch = Batch(self._batches.batch_size) if self._batches is not None else None
        self._taken: Batch | None = None  # the last decision in force
        self._epochs: tuple[int, Batches] | None = None
        self._every_steps = every_steps if given.checkpoint_every_s is None else None
        self._every_s = given.checkpoint_every_s or every_s or (EVERY_S if self._every_steps is None else None)
        self._directory = given.checkpoints or checkpoints
        self._keep = given.checkpoint_keep or (KEEP if keep is None else keep)
        self._logdir = logdir
        self._checkpoints: Checkpoints | None = None
        self._reports: Reports | None = None
        self._apart = next((one for one in self._strategies if not one.lockstep), None)
        self._agreement = agreement.Apart(self._apart) if self._apart else agreement.Agreement(self.world)
        rejoins = bool(self._strategies) and all(one.rejoins for one in self._strategies) and not per_rank
        rounds = worlds.rounds if rejoins else None
        self._membership = membership.Membership(rounds, state, self._strategies) if rounds else None
        self._find_succession = partial(succession.of, self._strategies, state, others=bool(per_rank))
        self._succession = self._find_succession()
        self._later_round = 0  # the newest round that all ranks know
        self._wish = stopping.Wish()
        self._stop = agreement.GO_ON
        self._saved_step: int | None = None
        self._saved_at = monotonic()
        self._save_soon = False  # the save under way was lost with a process
        self._can_rejoin = False

    @property
    def should_stop(self) -> bool:
        """Whether all ranks have agreed to stop, or all steps are done. The same on every rank."""
        return self._stop != agreement.GO_ON or (self.total_steps is not None and self.step >= self.total_steps)

    @property
    def accumulating(self) -> bool:
        """Whether more parts of this step follow, so that the optimizer must not step yet. Only with `adapt`."""
        return self._parts_left > 0

    @property
    def gain(self) -> float:
        """The factor for the learning rate (AdaScale SGD, arXiv 2007.05105). 1 while the gradients' noise is unknown.

        It is the progress of a step relative to a step at the batch size with which the job began.
        """
        return batchsizes.gain(self._environment.batch_size, self.batch, self.world.world_size, self._noise)

    def backward(self, loss: torch.Tensor) -> None:
        """Call `loss.backward()`. In a step of several parts: for their mean, with one exchange in the last part."""
        with contextlib.ExitStack() as held_back:
            for strategy in self._strategies if self.accumulating else ():
                held_back.enter_context(strategy.no_sync())
            parts = self.batch.accumulate if self._adapt and self.batch is not None else 1
            (loss / parts if parts > 1 else loss).backward()

    def request_stop(self) -> None:
        """End the training after this step, on all ranks. Any rank may call it."""
        self._wish.finish()

    def limit(self, last_step: int) -> None:
        """Let step `last_step` be the last one, unless the training ends before. All ranks must call it at one step."""
        self._limit = last_step if self._limit is None else min(self._limit, last_step)
        self.total_steps = self._limit if self.total_steps is None else min(self._limit, self.total_steps)

    def log(self, **values: Any) -> None:
        """Record numbers (or tensors of one element) at this step. Costs microseconds and does not wait for a GPU."""
        if self._reports is None:
            raise errors.ReportError("session.log() outside of `with session:`: no report is open")
        self._reports.log(self.step, values)
        for hook in self._readers:
            hook.on_log(self, values)

    def steps(self, batches: Iterable[Any] | None = None, *, epochs: int | None = None) -> Iterator[Any]:
        """Yield the batches of the remaining steps, or their numbers, until `epochs`, `total_steps` or a request to
        stop.

        Leave the loop early only if every rank does. If one rank decides alone, it calls request_stop().
        """
        if isinstance(batches, Batches) and batches is not self._batches:
            raise errors.StateError(
                "these batches are not saved: pass Session(batches=batches), or a resumed run would see them again"
            )
        if epochs is not None and not isinstance(batches, Batches):
            raise errors.StateError(
                "steps(epochs=...) needs oarlock.train.Batches, which know where an epoch ends; or use total_steps="
            )
        if epochs is not None and isinstance(batches, Batches):
            self._epochs = epochs, batches
            self._count_steps()
        stream = None if batches is None else iter(batches)
        self._pace.restart(cold=True)
        while not self.should_stop:
            self._parts_left = self.batch.accumulate - 1 if self._adapt and self.batch is not None else 0
            self._mark()
            try:
                batch = self._next(stream) if stream is not None else self.step + 1
            except StopIteration:
                return
            self.step += 1
            for hook in self._hooks:
                hook.before_step(self)
            yield batch
            while self._parts_left and stream is not None:
                self._parts_left -= 1
                self._pace.restart()
                self._data_s = 0.0
                try:
                    batch = self._next(stream)
                except StopIteration:
                    break
                yield batch
            self._end_step()

    def _next(self, stream: Iterator[Any]) -> Any:
        """Return the next batch, and note the time that it took."""
        began = monotonic()
        batch = next(stream)
        self._data_s += monotonic() - began
        return batch

    def __enter__(self) -> Session:
        self._wish.listen()
        try:
            self._reports = self._open_reports()
            self._open_checkpoints()
            self._begin()
            for hook in self._hooks:
                hook.on_begin(self)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            worlds.fail()
        try:
            self._tell_rejoin(False)  # a process that joined now would be alone after the last save
            if error is None:
                self._finish()
            for hook in self._hooks:
                hook.on_end(self, error)
        finally:
            self._close()
        if error is None and self._stop == agreement.STOP:
            raise stopping.Stopped

    def _end_step(self) -> None:
        """End the step, or take it back if a process was lost in it, and go on with those that are left."""
        try:
            if self._membership and self._membership.lost():
                raise errors.PeersLost("a process was lost in a step")
            self._settle_step()
        except errors.PeersLost as lost:
            if self._membership is None:
                raise
            self._change_round(lost, *self._membership.take_back(self.step))

    def _change_round(self, cause: BaseException | None, done: int, exchanges: int = 0) -> None:
        """Go on in the next round, after `done` steps."""
        assert self._membership is not None
        ended = self.total_steps is not None and done + bool(exchanges) >= self.total_steps
        over = ended or self._stop != agreement.GO_ON or not self._can_rejoin  # as it says when it has left its loop
        taken = self._taken.code if self._taken else 0
        here = membership.Position(done, exchanges, self._stop, taken, self._noise, over=over)
        if cause is None and not worlds.joining():
            self._agreement.finish()  # an exchange under way, cut off, may never end
        self._agreement = agreement.Agreement(self.world)
        self._straggler = straggling.Straggler()  # its rank may be another process now
        if self._checkpoints and self._checkpoints.abandon():
            self._save_soon = True
        position = self._membership.change(
            here, cause, self._wish, lambda number: self._tell_rejoin(self._can_rejoin, lost_round=number)
        )
        self.step, self._stop, self._noise = position.step, position.stop, position.noise
        if self._checkpoints:
            self._checkpoints.round_number = self._membership.number
        if self._adapt and position.batch:
            self._take_batch(Batch.of(position.batch))
        elif self._batches is not None:
            self._batches.resize(self._batches.batch_size)
        self._count_steps()
        self._tell_batch()
        self._pace.restart(cold=True)
        if self._reports:
            self._reports.draw(self._event_file)
            self._reports.progress.ranks, self._reports.progress.straggler = self.world.world_size, None
            self._reports.event("round", number=self._membership.number, step=self.step, ranks=self.world.world_size)
        goes = "stops" if self._stop == agreement.STOP else "goes on"
        size = self.world.world_size
        self._say(f"round {self._membership.number}: training {goes} after step {self.step} (world size {size})")

    def _settle_step(self) -> None:
        for strategy in self._strategies:
            strategy.after_step(self.step)
        self._catch_up()
        if self._apart and self._apart.leaves():
            raise membership.Left
        dataparallel.check_trained(self._state, self.step)
        self._tell_step()
        for hook in self._hooks:
            hook.after_step(self)
        writing = self._checkpoints.under_way if self._checkpoints else 0
        due = self._save_soon or (self._every_s is not None and monotonic() - self._saved_at >= self._every_s)
        busy = writing or (self._checkpoints and self._checkpoints.on_its_way)
        wanted = self._batch_file.look() if self._adapt and self.world.is_chief else None
        agreeing = monotonic()
        decision = self._agreement.settle(
            stop=self._wish.strongest,
            save=due and self.world.is_chief and not busy,
            batch=wanted.code if wanted is not None and wanted != self._taken else 0,
            noise=self._reports.progress.noise if self._reports else None,
            own_s=self._pace.own_s,
            writing=writing,
            round_number=self._membership.newest() if self._membership and self.world.is_chief else 0,
        )
        self._end_pace(monotonic() - agreeing)
        if decision.slowest is not None:
            self._note_slowest(decision.slowest)
        self._stop = decision.stop
        self._noise = decision.noise or self._noise
        if decision.batch and Batch.of(decision.batch) != self._taken:  # exchanges overlap, so it may arrive twice
            self._take_batch(Batch.of(decision.batch))
        if self._stop == agreement.STOP and self._reports:
            self._reports.event("stopping", step=self.step)
        if self._checkpoints:
            self._take_saved(self._checkpoints.heard(decision.writing))
        if decision.save or (self._every_steps and self.step % self._every_steps == 0):
            self._save()
            self._pace.restart()
        self._later_round = max(self._later_round, decision.round_number)
        if self._membership and self._later_round > self._membership.number and self._membership.between():
            self._change_round(None, self.step)

    def _catch_up(self) -> None:
        """Pass over the steps that other ranks made without this one."""
        ranks = self.world.world_size
        parts = self.batch.accumulate if self._adapt and self.batch is not None else 1
        self.step = behind.catch_up(self._strategies, self.world, self._batches, self.step, parts)
        if ranks != self.world.world_size:
            self._count_steps()
            self._say(f"{self.world.world_size} workers share the data from step {self.step + 1} on")

    def _note_slowest(self, slowest: straggling.Slowest) -> None:
        """Name a rank that the others wait for."""
        if self._straggler.note(slowest):
            self._say(slowest.words)
        if self._reports:
            self._reports.progress.straggler = self._straggler.present if self.world.is_chief else None

    def _end_pace(self, agreeing_s: float) -> None:
        """Count the step. The waiting is known if all exchanges are ours; a step without an exchange is only a part."""
        before, self._told = self._told, waited(self._strategies)
        exchanges, waited_s = self._told[0] - before[0], self._told[1] - before[1]
        ours = figures_of(self._strategies)
        counts = self.world.world_size == 1 or not ours or exchanges > 0
        known = self.world.world_size == 1 or (bool(ours) and all(one.waits_known for one in ours))
        self._pace.ended(
            counts=counts,
            waited_s=waited_s if known else None,
            data_s=self._data_s,
            sent_bytes=self._told[2] - before[2],
            agreeing_s=agreeing_s,
        )
        self._data_s = 0.0

    def _take_batch(self, batch: Batch) -> None:
        """Use the batch size from the next step on, on every rank."""
        self.batch = self._taken = batch
        if self._batches is not None:
            self._batches.resize(batch.local)
            self.batch = Batch(self._batches.batch_size, batch.accumulate)
        self._count_steps()
        self._pace.restart(cold=True)
        self._tell_batch()
        self._say(self._words.of(self.step + 1, self.batch, self.world.world_size, figures_of(self._strategies)))

    def _tell_batch(self) -> None:
        if self.batch is None:
            return
        for figures in figures_of(self._strategies):
            figures.share = self.batch.local * self.batch.accumulate
        if self._reports:
            progress = self._reports.progress
            progress.local, progress.accumulate = self.batch.local, self.batch.accumulate

    def _count_steps(self) -> None:
        """Compute `total_steps` from the epochs and the present batch size. An incomplete last step counts as one."""
        if self._epochs is None:
            return
        epochs, batches = self._epochs
        parts = self.batch.accumulate if self._adapt and self.batch is not None else 1
        ends = self.step - (-batches.remaining(epochs) // parts)
        self.total_steps = ends if self._limit is None else min(ends, self._limit)
        if self._reports:
            self._reports.progress.total_steps = self.total_steps

    def _tell_step(self) -> None:
        if self._reports:
            progress, batches = self._reports.progress, self._batches
            progress.step, progress.total_steps, progress.ranks = self.step, self.total_steps, self.world.world_size
            if batches is not None:
                progress.examples, progress.epoch = batches.examples, batches.epoch

    def _finish(self) -> None:
        """Save the last step, after all steps are done or a request to stop."""
        for strategy in self._strategies:
            strategy.finish(self._stop)
        while True:
            try:
                if self._checkpoints:
                    self._take_saved(self._checkpoints.finish())
                if self.step != self._saved_step:
                    self._save(last=True)
                break
            except errors.PeersLost as lost:
                if self._membership is None:
                    raise
                self._change_round(lost, self.step)
        if self._stop != agreement.STOP and self._reports:
            self._reports.event("done", step=self.step)

    def _save(self, *, last: bool = False) -> None:
        """Begin to save this step. The last step's checkpoint is waited for."""
        self._saved_at = monotonic()
        dataparallel.check_trained(self._state)
        if self._checkpoints is None or (self._apart and not self.world.is_chief):
            return
        self._save_soon = True  # again, if a process is lost before it has begun
        self._take_saved(self._checkpoints.finish())
        for hook in self._hooks:
            hook.before_checkpoint(self)
        for strategy in self._strategies:
            strategy.before_save()
        shared, own = self._contents.capture()
        meta = {"library": VERSION, "torch": torch.__version__, "holds": sorted(self._state), "noise": self._noise}
        if last:
            self._take_saved(self._checkpoints.save(self.step, shared, own, meta))
        else:
            self._checkpoints.begin(self.step, shared, own, meta)
        self._save_soon = False

    def _completed(self, saved: Saved) -> None:
        """Report a complete checkpoint, in the chief's thread that wrote it. Then older ones may go."""
        if self._reports:
            told = {"step": saved.step, "path": str(saved.path), "manifest_sha256": saved.manifest_sha256}
            self._reports.event("checkpoint", **told, bytes=saved.bytes)

    def _take_saved(self, saved: Saved | None) -> None:
        """Tell the hooks of a checkpoint that all ranks know to be complete."""
        if saved is not None:
            self._saved_step = saved.step
            for hook in self._hooks:
                hook.after_checkpoint(self, saved.path)

    def _open_reports(self) -> Reports:
        report, process = self._environment.report, self._environment.process
        reports = opened(report, process, line=Line(sys.stderr) if report is None and self.world.is_chief else None)
        reports.draw(self._event_file)
        self._can_stack = bool(report and (report / f"stack-{os.getpid()}.ready").exists())
        reports.progress.ranks, reports.progress.pace = self.world.world_size, pace.Mean(self._pace)
        reports.progress.measure_noise = self._measure_noise
        reports.progress.gpu_type = self._environment.gpu_type
        reports.event("hello", library=VERSION, can_rejoin=False, can_stack=self._can_stack)
        return reports

    def _event_file(self) -> EventFile | None:
        """Return a new file for TensorBoard, if this rank is the one that writes it."""
        wanted = self._logdir or self._environment.tensorboard
        return EventFile(Path(wanted)) if wanted and self.world.is_chief else None

    def _measure_noise(self) -> float | None:
        """Return the gradients' noise. The reporting thread calls it, because it may wait for the GPU."""
        found = [one.noise.examples() for one in figures_of(self._strategies)]
        return found[0] if len(found) == 1 else None

    def _open_checkpoints(self) -> None:
        if self._directory is not None:
            self._checkpoints = opening.checkpoints(
                self._directory,
                self.world,
                self._environment,
                keep=self._keep,
                apart=self._apart is not None,
                say=self._say,
                completed=self._completed,
                written=self._reports.event if self._reports else None,
            )
            self._contents.warn()

    def _begin(self) -> None:
        if worlds.joining():
            self._join()
            return
        if self._succession and self._succession.joins:
            self._succeed(self._succession)
        else:
            self._restore()
        if self._succession:
            self._succession.begin(self.step, self._wish.keep_waiting)
        self._tell_batch()
        self._saved_at = monotonic()
        alone = self._membership or self._succession or (worlds.exchanges and self._strategies == [self._apart])
        self._tell_rejoin(bool(alone))  # nothing waits for a certain process then: one that dies is replaced alone
        if self._reports:
            self._reports.begin(self.step, self._batches.examples if self._batches else None)

    def _restore(self) -> None:
        """Take the newest valid checkpoint, or the chief's weights."""
        restored, offered = None, self._environment.restore
        if self._checkpoints and self._resume:
            newest = manifests.complete(self._checkpoints.directory) if offered is None else offered
            restored = self._checkpoints.restore(newest)
        if restored:
            self._adopt(restored)
        else:
            for kept in self._state.values():
                if isinstance(kept, nn.Module):
                    replicas.broadcast(kept)
        for strategy in self._strategies:
            strategy.begin()
        self._catch_up()
        if self._adapt and self._environment.batch is not None:
            self._take_batch(self._environment.batch)

    def _join(self) -> None:
        """Wait for the others to take this process in, and go on where they are."""
        if self._membership is None:
            raise errors.StateError(
                "this process was started to join others, but its strategy cannot take a process in: use allreduce, or "
                "leave `on_failure: restart` out of the job file"
            )
        self._tell_rejoin(True)
        self._change_round(None, 0)
        for strategy in self._strategies:
            strategy.begin()
        self._saved_at = monotonic()
        if self._reports:
            self._reports.begin(self.step, self._batches.examples if self._batches else None)

    def _mark(self) -> None:
        """Remember this boundary of steps: a step is taken back to it, or repeated from it."""
        tell_steps_left(self._strategies, self.step, self.total_steps)
        if self._membership:
            self._membership.mark(self.step)
        if self._succession is None and (found := self._find_succession()):  # by the choice of the last step
            self._agreement.finish()  # it was begun in the process group, which ends with its first member
            self._agreement, self._succession = agreement.Agreement(self.world), found
            found.begin(self.step, self._wish.keep_waiting)
            self._tell_rejoin(True)
        if self._succession:
            self._succession.mark(self._position)

    def _position(self) -> dict[str, Any]:
        """Return the facts of this session, between two steps, that are the same on all ranks."""
        told = {"step": self.step, "stop": self._stop, "noise": self._noise, "limit": self._limit}
        told |= {"batch": self._taken.code if self._taken else 0, "saved": self._saved_step}
        saves = self._checkpoints.position() if self._checkpoints else None
        return {**told, "agreement": self._agreement.position(), "checkpoints": saves}

    def _succeed(self, place: succession.Succession) -> None:
        """Go on in the place of a process that died, while the others wait in their step."""
        for strategy in self._strategies:
            strategy.begin()
        told = place.take()
        self.step, self._stop, self._noise = told["step"], told["stop"], told["noise"]
        self.total_steps, self._limit, self._saved_step = told["limit"], told["limit"], told["saved"]
        self._agreement.go_on(told["agreement"])
        if self._checkpoints and told["checkpoints"]:
            self._checkpoints.go_on(told["checkpoints"])
        if self._adapt and told["batch"]:
            self._take_batch(Batch.of(told["batch"]))
        sys.stderr.write(f"oarlock.train: this process takes the place of a dead one, after step {self.step}\n")

    def _tell_rejoin(self, can: bool, **lost: int) -> None:
        """Tell the server whether this process can go on among others than now, and of a round with a loss."""
        if self._reports and (lost or can != self._can_rejoin):
            self._can_rejoin = can
            self._reports.event("hello", library=VERSION, can_rejoin=can, can_stack=self._can_stack, **lost)

    def _adopt(self, restored: Restored) -> None:
        self._contents.take(restored)
        self.step = self._saved_step = restored.step
        self._noise = restored.noise
        self._say(f"resumed from {restored.path.name}")
        if self._reports and self.world.is_chief:
            self._reports.event("restored", step=restored.step, path=str(restored.path))

    def _say(self, text: str) -> None:
        if self.world.is_chief:
            sys.stderr.write(f"oarlock.train: {text}\n")

    def _close(self) -> None:
        if self._membership:
            self._membership.close()
        if self._checkpoints:
            self._checkpoints.close()
        if self._reports:
            self._reports.close()
            self._reports = None
        self._wish.close()
