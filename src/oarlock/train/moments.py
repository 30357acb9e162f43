"""The moments of a session at which the hooks of a script run. The session imports this, so its type is not here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Hook:
    """A hook that does nothing. A script subclasses it and overrides the methods that it needs.

    Hooks run on every rank, in the order given to the session. An exception in a hook ends the training, as an
    exception in the script does.
    """

    def on_begin(self, session: Any) -> None:
        """Run once the session has begun. `session.step` is the step of the checkpoint that it goes on from, or 0."""

    def before_step(self, session: Any) -> None:
        """Run before a step. `session.step` is its number, from 1."""

    def after_step(self, session: Any) -> None:
        """Run after a step. A checkpoint may follow."""

    def on_log(self, session: Any, values: Mapping[str, Any]) -> None:
        """Run when the script logs these values."""

    def before_checkpoint(self, session: Any) -> None:
        """Run before a checkpoint is made. An exception prevents it."""

    def after_checkpoint(self, session: Any, path: Path) -> None:
        """Run after the checkpoint at `path` is complete and verified, at a later step than its own mostly."""

    def on_end(self, session: Any, error: BaseException | None) -> None:
        """Run when the session closes. `error` is the exception that ended it, or None."""
