"""The life of a training run, as seen from its script.

    with train.Session(model=model, optimizer=optimizer, batches=batches) as session:
        for x, y in session.steps(batches, epochs=5):
            ...                                  # forward, backward, optimizer.step()
            session.log(loss=loss)

On entry the state is restored from the newest checkpoint that holds, or every rank gets the chief's initial weights. At
each step boundary the ranks agree whether to save and whether to stop (agreement.py). A request to stop is SIGTERM to
any rank: all finish the same step, save it, close, and end with exit code 143, which is how a process ends that SIGTERM
ended. An error in the body ends the session without a checkpoint and without another exchange: the other ranks may be
anywhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn

from oarlock.train import agreement, allotment, errors, failpoints, manifests, pace, rng
from oarlock.train import world as worlds
from oarlock.train.allotment import Batch
from oarlock.train.batches import Batches
from oarlock.train.checkpoints import Checkpoints, Restored
from oarlock.train.hooks import Hook
from oarlock.train.progress import Line
from oarlock.train.reports import VERSION, MetricFrames, Reports, Sink
from oarlock.train.strategies import replicas
from oarlock.train.strategies.dataparallel import strategy_of
from oarlock.train.strategies.strategy import Figures, Strategy
from oarlock.train.tensorboard import EventFile

EVERY_S = 600.0
KEEP = 3


class Stopped(SystemExit):
    """The session was asked to stop, saved, and closed. Unless somebody catches it, the process ends with 128 +
    SIGTERM.
    """

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Session:
    """Keeps `state` (anything with state_dict and load_state_dict, by keyword), saves it, restores it, and reports.

    `checkpoints` is a directory that all ranks see; every `every_s` seconds (600) or `every_steps` steps a checkpoint
    is made there and the newest `keep` (3) are kept. Where the job says otherwise (OARLOCK_CHECKPOINTS,
    OARLOCK_CHECKPOINT_EVERY_S, OARLOCK_CHECKPOINT_KEEP) the job decides. Without a directory nothing is saved.
    `total_steps` ends the steps. `per_rank` is state that differs between ranks; it is dropped when their number
    changes. `logdir` is where TensorBoard's event files go (else OARLOCK_TENSORBOARD). `resume=False` begins at the
    first step. `adapt=True` lets the scheduler choose the batch size, where the job file says so: the kept `Batches`
    take it up, `backward` and `accumulating` keep to its parts, and `gain` says what it is worth.
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
        logdir: str | os.PathLike[str] | None = None,
        resume: bool = True,
        adapt: bool = False,
        **state: Any,
    ) -> None:
        for name, value in (*state.items(), *(per_rank or {}).items()):
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise errors.StateError(
                    f"{name} is a {type(value).__name__} without state_dict and load_state_dict: it cannot be kept. "
                    "Leave it out, or give it the two methods."
                )
        environ = os.environ
        self.world = worlds.init()
        self.step = 0  # steps done; within the body, the number of the step being taken, from 1
        self.total_steps = self._limit = total_steps
        self._state = state
        self._hooks, self._resume = tuple(hooks), resume
        self._batches = next((each for each in state.values() if isinstance(each, Batches)), None)
        attached = {name: strategy_of(each) for name, each in state.items() if isinstance(each, nn.Module)}
        self._strategies = [one for one in (*attached.values(), strategy) if one is not None]
        self._own = {**(per_rank or {}), **({"strategy": strategy} if strategy else {})}
        for name, one in attached.items():
            if one is not None and one.state_dict():
                self._own[f"strategy of {name}"] = one
        self._adapt, self._allotment = adapt, allotment.Allotment(environ)
        self._parts_left = 0  # of the step being taken, after the present one
        self._noise: float | None = None  # the same on every rank
        self._pace = pace.Pace()
        self._told = (0, 0.0)  # exchanges and waiting, by the end of the last step
        self.batch = Batch(self._batches.batch_size) if self._batches is not None else None
        self._taken: Batch | None = None  # the decision that was taken up last
        self._epochs: tuple[int, Batches] | None = None
        self._every_steps = every_steps if "OARLOCK_CHECKPOINT_EVERY_S" not in environ else None
        default_s = EVERY_S if self._every_steps is None else None
        self._every_s = float(environ.get("OARLOCK_CHECKPOINT_EVERY_S") or 0) or every_s or default_s
        self._directory = environ.get("OARLOCK_CHECKPOINTS") or checkpoints
        self._keep = int(environ.get("OARLOCK_CHECKPOINT_KEEP") or (KEEP if keep is None else keep))
        self._logdir = logdir
        self._checkpoints: Checkpoints | None = None
        self._reports: Reports | None = None
        self._agreement = agreement.Agreement(self.world)
        self._wish = self._stop = agreement.GO_ON
        self._saved_step: int | None = None
        self._saved_at = monotonic()
        self._handler_before: Any = None

    @property
    def should_stop(self) -> bool:
        """True once all ranks have agreed to stop, or all steps are done. The same on every rank."""
        return self._stop != agreement.GO_ON or (self.total_steps is not None and self.step >= self.total_steps)

    @property
    def accumulating(self) -> bool:
        """True in those parts of a step after which the optimizer is not to step yet. Only with `adapt`."""
        return self._parts_left > 0

    @property
    def gain(self) -> float:
        """By how much more a step brings forward than one at the batch size that the job began with: what to multiply
        the learning rate with (AdaScale SGD, arXiv 2007.05105). 1 while the gradients' noise is not known.
        """
        initial, batch = self._allotment.initial, self.batch
        if initial is None or batch is None or not self._noise:
            return 1.0
        total = batch.local * batch.accumulate * self.world.world_size
        return total / initial * (self._noise + initial) / (self._noise + total)

    def backward(self, loss: torch.Tensor) -> None:
        """`loss.backward()`; where a step has several parts, of their mean, with one exchange at the last of them."""
        with contextlib.ExitStack() as held_back:
            for strategy in self._strategies if self.accumulating else ():
                held_back.enter_context(strategy.no_sync())
            parts = self.batch.accumulate if self._adapt and self.batch is not None else 1
            (loss / parts if parts > 1 else loss).backward()

    def request_stop(self) -> None:
        """End the training well: all ranks stop after the same step. Any rank may ask."""
        self._wish = max(self._wish, agreement.FINISH)

    def log(self, **values: Any) -> None:
        """Record numbers (or tensors of one element) at this step. Costs microseconds and does not wait for a GPU."""
        if self._reports is None:
            raise errors.ReportError("session.log() outside of `with session:`: there is nobody to hear it")
        self._reports.log(self.step, values)

    def steps(self, batches: Iterable[Any] | None = None, *, epochs: int | None = None) -> Iterator[Any]:
        """The steps still to be taken: their numbers, or with `batches` those; until `epochs`, `total_steps` or a
        request to stop.

        Leave the loop early only where every rank does; request_stop() is the way when one alone decides.
        """
        if isinstance(batches, Batches) and batches is not self._batches:
            raise errors.StateError(
                "these batches are not kept: pass Session(batches=batches), or a resumed run would see their data again"
            )
        if epochs is not None and not isinstance(batches, Batches):
            raise errors.StateError(
                "steps(epochs=...) needs oarlock.train.Batches, which know where an epoch ends; or use total_steps="
            )
        if epochs is not None and isinstance(batches, Batches):
            self._epochs = epochs, batches
            self._count_steps()
        stream = None if batches is None else iter(batches)
        self._pace.anew(cold=True)
        while not self.should_stop:
            self._parts_left = self.batch.accumulate - 1 if self._adapt and self.batch is not None else 0
            try:
                batch = next(stream) if stream is not None else self.step + 1
            except StopIteration:
                return
            self.step += 1
            for hook in self._hooks:
                hook.before_step(self)
            yield batch
            while self._parts_left and stream is not None:
                self._parts_left -= 1
                self._pace.anew()
                try:
                    batch = next(stream)
                except StopIteration:
                    break
                yield batch
            self._end_step()

    def __enter__(self) -> Session:
        if threading.current_thread() is threading.main_thread():
            self._handler_before = signal.signal(signal.SIGTERM, self._on_signal)
        try:
            self._reports = self._open_reports()
            self._open_checkpoints()
            self._begin()
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
            if error is None:
                self._finish()
            for hook in self._hooks:
                hook.on_end(self, error)
        finally:
            self._close()
        if error is None and self._stop == agreement.STOP:
            raise Stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._wish = agreement.STOP

    def _end_step(self) -> None:
        for strategy in self._strategies:
            strategy.after_step(self.step)
        self._tell_step()
        for hook in self._hooks:
            hook.after_step(self)
        due = self.world.is_chief and self._every_s is not None and monotonic() - self._saved_at >= self._every_s
        wanted = self._allotment.look() if self._adapt and self.world.is_chief else None
        decision = self._agreement.settle(
            stop=self._wish,
            save=due,
            batch=wanted.code if wanted is not None and wanted != self._taken else 0,
            noise=self._reports.progress.noise if self._reports and self.world.is_chief else None,
        )
        self._end_pace()
        self._stop = decision.stop
        self._noise = decision.noise or self._noise
        if decision.batch and Batch.of(decision.batch) != self._taken:  # exchanges overlap: it may come twice
            self._take_batch(Batch.of(decision.batch))
        if self._stop == agreement.STOP and self._reports:
            self._reports.event("stopping", step=self.step)
        if decision.save or (self._every_steps and self.step % self._every_steps == 0):
            self._save()
            self._pace.anew()

    def _end_pace(self) -> None:
        """Of a gang whose exchanges are ours it is known how long each step waited; a step without one is a part."""
        before, self._told = self._told, self._waited()
        exchanges, waited_s = (now - then for now, then in zip(self._told, before))
        ours = bool(self._figures())
        counts = self.world.world_size == 1 or not ours or exchanges > 0
        known = self.world.world_size == 1 or ours
        self._pace.ended(counts=counts, waited_s=waited_s if known else None)

    def _waited(self) -> tuple[int, float]:
        figures = self._figures()
        return sum(one.exchanges for one in figures), sum(one.waiting.total_s for one in figures)

    def _figures(self) -> list[Figures]:
        """Return the figures of the strategies that measure themselves."""
        return [one.figures for one in self._strategies if one.figures is not None]

    def _take_batch(self, batch: Batch) -> None:
        """From the next step on, on every rank alike."""
        self.batch = self._taken = batch
        if self._batches is not None:
            self._batches.resize(batch.local)
            self.batch = Batch(self._batches.batch_size, batch.accumulate)
        self._count_steps()
        self._pace.anew(cold=True)
        self._tell_batch()
        of = f"{self.batch.local} examples" + (f" {batch.accumulate} times" if batch.accumulate > 1 else "")
        self._say(f"from step {self.step + 1} on a step takes {of} on each of {self.world.world_size} ranks")

    def _tell_batch(self) -> None:
        if self.batch is None:
            return
        for figures in self._figures():
            figures.share = self.batch.local * self.batch.accumulate
        if self._reports:
            progress = self._reports.progress
            progress.local, progress.accumulate = self.batch.local, self.batch.accumulate

    def _count_steps(self) -> None:
        """How many steps the epochs make at the present batch size; a last step that is not whole takes of the next."""
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
            progress.step, progress.total_steps = self.step, self.total_steps
            if batches is not None:
                progress.examples, progress.epoch = batches.examples, batches.epoch

    def _finish(self) -> None:
        """The steps are over, by themselves or by request: keep where they got to."""
        if self.step != self._saved_step:
            self._save()
        if self._stop != agreement.STOP and self._reports:
            self._reports.event("done", step=self.step)

    def _save(self) -> None:
        self._saved_at = monotonic()
        if self._checkpoints is None:
            return
        shared = {name: kept.state_dict() for name, kept in self._state.items()} if self.world.is_chief else {}
        own = {"rng": rng.capture(), "per_rank": {name: kept.state_dict() for name, kept in self._own.items()}}
        meta = {"library": VERSION, "torch": torch.__version__, "holds": sorted(self._state), "noise": self._noise}
        saved = self._checkpoints.save(self.step, shared, own, meta)
        self._saved_at = monotonic()
        if saved is None:
            return
        self._saved_step = self.step
        if self._reports and self.world.is_chief:
            self._reports.event(
                "checkpoint",
                step=saved.step,
                path=str(saved.path),
                manifest_sha256=saved.manifest_sha256,
                bytes=saved.bytes,
            )
        failpoints.hit("train.after_checkpoint_reported")
        self._checkpoints.prune()
        for hook in self._hooks:
            hook.after_checkpoint(self, saved.path)

    def _open_reports(self) -> Reports:
        environ, process = os.environ, os.environ.get("OARLOCK_PROCESS", "0")
        sinks: list[Sink] = []
        report = Path(environ["OARLOCK_REPORT"]) if environ.get("OARLOCK_REPORT") else None
        if report:
            report.mkdir(parents=True, exist_ok=True)
            sinks.append(MetricFrames(report / f"metrics-{process}.bin"))
        wanted = self._logdir or environ.get("OARLOCK_TENSORBOARD")
        if wanted and self.world.is_chief:
            sinks.append(EventFile(Path(wanted)))
        line = Line(sys.stderr) if report is None and self.world.is_chief else None
        reports = Reports(events=report / f"events-{process}.jsonl" if report else None, sinks=sinks, line=line)
        stacks = bool(report and (report / f"stack-{os.getpid()}.ready").exists())
        reports.progress.ranks, reports.progress.pace = self.world.world_size, pace.Mean(self._pace)
        reports.progress.measure_noise = self._measure_noise
        reports.progress.gpu_type = environ.get("OARLOCK_GPU_TYPE")
        reports.event("hello", library=VERSION, can_rejoin=False, can_stack=stacks)
        return reports

    def _measure_noise(self) -> float | None:
        """Called by the thread that reports: it may have to wait for the GPU."""
        found = [one.noise.examples() for one in self._figures()]
        return found[0] if len(found) == 1 else None

    def _open_checkpoints(self) -> None:
        if self._directory is None:
            return
        directory = Path(self._directory).absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise errors.CheckpointError(
                f"no checkpoints can be kept in {directory} ({cause}): give a directory that can be written"
            ) from cause
        # Outside of Oarlock every start of the script is an attempt of its own: the newest checkpoint is the last made.
        newest = max((manifests.order(path) or (0,))[0] for path in (*manifests.attempted(directory), directory))
        attempt, round_number = self.world.gather(
            (int(os.environ.get("OARLOCK_ATTEMPT") or newest + 1), int(os.environ.get("OARLOCK_ROUND") or 1))
        )[0]
        self._checkpoints = Checkpoints(
            directory, self.world, attempt=attempt, round_number=round_number, keep=self._keep, say=self._say
        )

    def _begin(self) -> None:
        restored = self._checkpoints.restore(self._candidates()) if self._checkpoints and self._resume else None
        if restored:
            self._adopt(restored)
        else:
            for kept in self._state.values():
                if isinstance(kept, nn.Module):
                    replicas.broadcast(kept)
        for strategy in self._strategies:
            strategy.begin()
        if self._adapt and self._allotment.first is not None:
            self._take_batch(self._allotment.first)
        self._tell_batch()
        self._saved_at = monotonic()
        if self._reports:
            self._reports.begin(self.step, self._batches.examples if self._batches else None)

    def _candidates(self) -> list[Path]:
        offered = os.environ.get("OARLOCK_RESTORE")
        if offered is not None:
            return [Path(path) for path in offered.split(os.pathsep) if path]
        return manifests.complete(Path(self._directory).absolute()) if self._directory is not None else []

    def _adopt(self, restored: Restored) -> None:
        missing = [name for name in self._state if name not in restored.shared]
        if missing:
            raise errors.CheckpointError(
                f"{restored.path} holds {', '.join(sorted(restored.shared))}, but no {', '.join(missing)}. "
                "Leave that out of the Session, or begin again with resume=False or another directory."
            )
        dropped = sorted(set(restored.shared) - set(self._state))
        if dropped:
            self._say(
                f"{restored.path.name} also holds {', '.join(dropped)}, which this session does not keep: dropped"
            )
        for name, kept in self._state.items():
            try:
                kept.load_state_dict(restored.shared[name])
            except (RuntimeError, ValueError, KeyError) as cause:
                raise errors.CheckpointError(
                    f"{name} does not take its state from {restored.path}: {cause}. "
                    "Build it as it was, or begin again with resume=False."
                ) from cause
        self.step = self._saved_step = restored.step
        self._noise = restored.noise
        if restored.own is None:
            kept_back = " and ".join(["the random generators' states", *self._own])
            self._say(
                f"{restored.path.name} was made by {restored.world_size} ranks, now there are {self.world.world_size}: "
                f"{kept_back} are dropped"
            )
        else:
            for name, kept in self._own.items():
                if name in restored.own["per_rank"]:
                    kept.load_state_dict(restored.own["per_rank"][name])
            rng.reinstate(restored.own["rng"])
        self._say(f"resumed from {restored.path.name}")
        if self._reports and self.world.is_chief:
            self._reports.event("restored", step=restored.step, path=str(restored.path))

    def _say(self, text: str) -> None:
        if self.world.is_chief:
            sys.stderr.write(f"oarlock.train: {text}\n")

    def _close(self) -> None:
        if self._reports:
            self._reports.close()
            self._reports = None
        if self._handler_before is not None:
            signal.signal(signal.SIGTERM, self._handler_before)
            self._handler_before = None
