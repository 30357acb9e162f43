"""The errors of the training library. Every message names the next step.

    TrainError
      WorldError        the rank of this process is unknown, or does not fit the machine
      StateError        a value given to the session cannot be saved
      CheckpointError   no checkpoint can be restored, or it does not fit this session
      ReportError       a value cannot be reported
      ServerError       a parameter server cannot be reached, or refuses a request
      PeersLost         another process of an elastic job is gone
      DivergedError     a value that must be a finite number is none

The library imports nothing else of Oarlock, so it has its own tree of errors.
"""

from __future__ import annotations


class TrainError(Exception):
    """The root of all errors of this library."""


class WorldError(TrainError):
    """The rank of this process is unknown, or does not fit the machine."""


class StateError(TrainError):
    """A value given to the session cannot be saved."""


class CheckpointError(TrainError):
    """No checkpoint can be restored, or it does not fit this session."""


class ReportError(TrainError):
    """A value cannot be reported."""


class ServerError(TrainError):
    """A parameter server cannot be reached, or refuses a request."""


class PeersLost(TrainError):
    """Another process of an elastic job is gone. The session goes on with those that are left."""


class DivergedError(TrainError):
    """A value that must be a finite number is NaN or infinite."""
