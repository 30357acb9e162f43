"""What keeps the replicas of a model together.

A strategy is told three moments: a model is given to it, a gradient is not to be exchanged yet, a step is over. What it
remembers between steps is this rank's own (residuals of a compression, a local model) and is saved with this rank's
shard.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import nn


class Strategy(Protocol):
    """One way of training together. `kind` is its name in the job file."""

    kind: str

    def attach(self, model: nn.Module) -> nn.Module:
        """Make every rank's `model` the chief's, and keep it together with the others from now on. Returns the model to
        train.
        """
        ...

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes in here only accumulate; the first one after it exchanges the sum."""
        ...

    def after_step(self, step: int) -> None:
        """Step `step` is over, on every rank."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What this rank has to remember; empty when nothing."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
