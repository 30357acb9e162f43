"""Ready-made hooks for a session.

    stopping = train.EarlyStopping("accuracy", patience=5, larger=True)
    hooks = [train.NaNGuard(), stopping, train.Summaries(model, optimizer), train.Profiler("profile")]
    with train.Session(model=model, stopping=stopping, hooks=hooks) as session:

A hook with state (EarlyStopping) is given to the session as state too, so that a resumed run goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim

from oarlock.train import errors
from oarlock.train.moments import Hook
from oarlock.train.session import Session


class StopAtStep(Hook):
    """Ends the training after step `last`, on all ranks."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_begin(self, session: Session) -> None:
        session.limit(self.last)


class EarlyStopping(Hook):
    """Ends the training when the logged value `name` has not improved for `patience` values.

    Smaller is better, unless `larger`. A change of at most `least_change` is no improvement; NaN neither.
    """

    def __init__(self, name: str, *, patience: int, larger: bool = False, least_change: float = 0.0) -> None:
        if patience < 1:
            raise errors.StateError(f"patience={patience} is below 1: that would end the training at the first value")
        self.name, self.patience, self.larger, self.least_change = name, patience, larger, least_change
        self.best: float | None = None
        self.best_step = 0
        self.values_since = 0

    def on_log(self, session: Session, values: Mapping[str, Any]) -> None:
        if self.name not in values:
            return
        value = float(values[self.name])
        gain = 0.0 if self.best is None else (value - self.best) * (1 if self.larger else -1)
        if value == value and (self.best is None or gain > self.least_change):
            self.best, self.best_step, self.values_since = value, session.step, 0
            return
        self.values_since += 1
        if self.values_since >= self.patience:
            session.request_stop()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "values_since": self.values_since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.best_step, self.values_since = state["best"], state["best_step"], state["values_since"]


class NaNGuard(Hook):
    """Ends the training with DivergedError when a logged value is NaN or infinite, before a checkpoint holds it.

    `names` are the values to guard. Values on a GPU are read every `every_steps` steps and before each checkpoint,
    because reading waits for it.
    """

    def __init__(self, *names: str, every_steps: int = 1) -> None:
        self.names = names or ("loss",)
        self.every_steps = every_steps
        self._seen: list[tuple[int, str, torch.Tensor]] = []

    def on_log(self, session: Session, values: Mapping[str, Any]) -> None:
        for name in self.names:
            if name in values:
                value = values[name]
                kept = value.detach().clone() if isinstance(value, torch.Tensor) else torch.tensor(float(value))
                self._seen.append((session.step, name, kept))

    def after_step(self, session: Session) -> None:
        if session.step % self.every_steps == 0:
            self._look()

    def before_checkpoint(self, session: Session) -> None:
        self._look()

    def on_end(self, session: Session, error: BaseException | None) -> None:
        if error is None:
            self._look()

    def _look(self) -> None:
        seen, self._seen = self._seen, []
        for step, name, value in seen:
            if not bool(torch.isfinite(value)):
                raise errors.DivergedError(
                    f"{name} is {float(value)} at step {step}. Continue from an older checkpoint with a smaller "
                    "learning rate or with clipped gradients."
                )


class Summaries(Hook):
    """Logs the norms of weights and gradients, and the learning rate, every `every_steps` steps.

    With `each`, the norms of every parameter too. The gradients must be there at the end of the step: call
    `zero_grad()` before `backward()`, not after the optimizer's step. Where ranks have divided the model (FSDP2, tensor
    parallelism), the norms are those of the whole tensors. They are completed by an exchange, so give the hook to the
    sessions of all processes: one that has it alone, such as the chief, waits for the others for ever.
    """

    def __init__(
        self, model: nn.Module, optimizer: optim.Optimizer | None = None, *, every_steps: int = 100, each: bool = False
    ) -> None:
        self.model, self.optimizer, self.every_steps, self.each = model, optimizer, every_steps, each

    @torch.no_grad()
    def after_step(self, session: Session) -> None:
        if session.step % self.every_steps:
            return
        weights = {name: parameter for name, parameter in self.model.named_parameters() if parameter.numel()}
        made = {name: parameter.grad for name, parameter in weights.items() if parameter.grad is not None}
        values: dict[str, Any] = {}
        for kind, tensors in (("weight", weights), ("gradient", made)):
            norms = _norms(tensors)
            if norms:
                first = next(iter(norms.values())).device
                together = torch.stack([norm.to(first) for norm in norms.values()])
                values[f"{kind}_norm"] = torch.linalg.vector_norm(together)
            if self.each:
                values.update({f"{kind}_norm/{name}": norm for name, norm in norms.items()})
        for number, group in enumerate(self.optimizer.param_groups if self.optimizer else ()):
            values["lr" if number == 0 else f"lr/{number}"] = float(group["lr"])
        session.log(**values)


def _norms(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the norm of each tensor.

    Those that ranks have divided are completed here, where all ranks come in the same step: with one exchange for all
    that are divided alike.
    """
    norms = {name: torch.linalg.vector_norm(tensor.float()) for name, tensor in tensors.items()}
    divided: dict[Any, list[str]] = {}
    for name, norm in norms.items():
        if hasattr(norm, "full_tensor"):
            divided.setdefault((norm.device_mesh, norm.placements), []).append(name)
    for names in divided.values():
        together: Any = torch.stack([norms[name] for name in names])
        norms.update(zip(names, together.full_tensor().unbind()))
    return norms


class Profiler(Hook):
    """Profiles `steps` steps from step `first` of this run on (counted from 1), on the chief, into a Chrome trace in
    `directory`. Open it in https://ui.perfetto.dev.
    """

    def __init__(self, directory: str | Path, *, first: int = 10, steps: int = 3) -> None:
        self.directory, self.first, self.steps = Path(directory), first, steps
        self._done = 0
        self._profile: Any = None

    def before_step(self, session: Session) -> None:
        self._done += 1
        if session.world.is_chief and self._done == self.first:
            self._profile = torch.profiler.profile()
            self._profile.start()

    def after_step(self, session: Session) -> None:
        if self._profile is not None and self._done >= self.first + self.steps - 1:
            self._export(session)

    def on_end(self, session: Session, error: BaseException | None) -> None:
        if self._profile is not None:
            self._export(session)

    def _export(self, session: Session) -> None:
        profile, self._profile = self._profile, None
        profile.stop()
        self.directory.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(self.directory / f"trace-step-{session.step}.json.gz"))
