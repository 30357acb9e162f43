"""The hooks of a session. A script subclasses Hook and overrides the methods that it needs.

Hooks run on every rank, in the order given to the session. An exception in a hook ends the training, as an exception in
the script does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oarlock.train.session import Session


class Hook:
    """A hook that does nothing."""

    def before_step(self, session: Session) -> None:
        """Run before a step. `session.step` is its number, from 1."""

    def after_step(self, session: Session) -> None:
        """Run after a step. A checkpoint may follow."""

    def after_checkpoint(self, session: Session, path: Path) -> None:
        """Run after the checkpoint at `path` is complete and verified."""

    def on_end(self, session: Session, error: BaseException | None) -> None:
        """Run when the session closes. `error` is the exception that ended it, or None."""
