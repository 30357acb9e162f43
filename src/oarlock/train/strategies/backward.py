"""The backward pass as a strategy sees it: its first gradient, each finished gradient, and its end.

An error may end a pass on one rank alone, after some gradients were sent, and the script may catch it. The others then
wait for the rest. So a pass that has begun always makes one whole exchange: what is missing is sent as zeros, before
the next exchange of any kind, and the results are dropped.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from oarlock.train import errors, worlds


class Listener(Protocol):
    """The receiver of the moments of a pass. Gradients are named by their index in the list of parameters."""

    def pass_began(self) -> None: ...
    def gradient_ready(self, index: int) -> None: ...
    def pass_ended(self) -> None: ...
    def complete_pass(self) -> bool: ...


class UnderWay:
    """The backward pass that is under way, if one is."""

    def __init__(self) -> None:
        self._end: weakref.ref[_End] | None = None

    @property
    def goes_on(self) -> bool:
        """Whether neither its end nor an error has ended it."""
        return self._end is not None and self._end() is not None

    def begin(self, ended: Callable[[], None]) -> bool:
        """Take note of a gradient. Return whether it is the first one of a pass, at whose end `ended` is called.

        The engine keeps the call until then, and drops it where an error ends the pass. The next gradient is that of
        another pass then.
        """
        if self.goes_on:
            return False
        end = _End(self, ended)
        self._end = weakref.ref(end)
        torch.autograd.Variable._execution_engine.queue_callback(end)
        return True

    def over(self) -> None:
        self._end = None


class _End:
    def __init__(self, way: UnderWay, ended: Callable[[], None]) -> None:
        self._way, self._ended = way, ended

    def __call__(self) -> None:
        self._way.over()
        self._ended()


class BackwardPass:
    """Hooks on `parameters` that tell `listener` of every backward pass outside of `held_back()`."""

    def __init__(self, parameters: Sequence[nn.Parameter], listener: Listener) -> None:
        self.listener = listener
        self._telling = True
        self._under_way = UnderWay()
        _known[next(_numbers)] = self
        worlds.complete = complete
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))

    @property
    def exchanges(self) -> bool:
        """Whether the passes of this moment are told."""
        return self._telling

    @property
    def goes_on(self) -> bool:
        """Whether a pass is under way."""
        return self._under_way.goes_on

    @contextmanager
    def held_back(self) -> Iterator[None]:
        before, self._telling = self._telling, False
        try:
            yield
        finally:
            self._telling = before

    def _hook(self, index: int) -> Any:
        def ready(parameter: torch.Tensor) -> None:
            if not self._telling:
                return
            if self._under_way.begin(self._end):
                complete()
                self.listener.pass_began()
            self.listener.gradient_ready(index)

        return ready

    def _end(self) -> None:
        self.listener.pass_ended()


_known: weakref.WeakValueDictionary[int, BackwardPass] = weakref.WeakValueDictionary()
"""The passes of all models, the first one first."""
_numbers = itertools.count()


def complete() -> None:
    """Complete the exchanges of all passes that an error has ended: the others wait for them, in this order."""
    for each in list(_known.values()):
        if not each.goes_on:
            each.listener.complete_pass()


def refuse_missing(names: Sequence[str]) -> None:
    """Raise StateError where a pass made no gradient for these parameters."""
    if names:
        some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise errors.StateError(
            f"the backward pass gave no gradient to {some}. "
            "If that is meant, use data_parallel(..., unused_parameters=True). If torch.utils.checkpoint computes them "
            "again, give it use_reentrant=False"
        )
