"""What a script may hang onto a session: subclass Hook and override what is wanted.

Hooks run on every rank, in the order given to the session. An exception in one ends the training as an exception in the
script would.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oarlock.train.session import Session


class Hook:
    """Does nothing at every point of a session's life."""

    def before_step(self, session: Session) -> None:
        """`session.step` is the number of the step about to be taken, from 1."""

    def after_step(self, session: Session) -> None:
        """The step's body has run; a checkpoint may follow."""

    def after_checkpoint(self, session: Session, path: Path) -> None:
        """The checkpoint under `path` is complete and verified."""

    def on_end(self, session: Session, error: BaseException | None) -> None:
        """The session closes: `error` is what ended it, or None."""
