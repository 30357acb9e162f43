"""The errors of the training library. Every message names the next step.

    TrainError
      WorldError        who we are among the processes cannot be told, or does not fit the machine
      StateError        what the session was asked to keep cannot be kept
      CheckpointError   no checkpoint can be restored, or it does not fit this session
      ReportError       a value cannot be reported

The library imports nothing else of Oarlock, hence a tree of its own.
"""

from __future__ import annotations


class TrainError(Exception):
    """Root of what this library raises."""


class WorldError(TrainError):
    """Who we are among the processes cannot be told, or does not fit the machine."""


class StateError(TrainError):
    """What the session was asked to keep cannot be kept."""


class CheckpointError(TrainError):
    """No checkpoint can be restored, or it does not fit this session."""


class ReportError(TrainError):
    """A value cannot be reported."""
