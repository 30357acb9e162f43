"""Data parallelism in one call: `data_parallel(model, optimizer)`. A model keeps its strategy as long as it lives."""

from __future__ import annotations

import os
import weakref
from contextlib import AbstractContextManager

from torch import nn, optim

from oarlock.train import errors
from oarlock.train.strategies import choices
from oarlock.train.strategies.strategy import Strategy

_strategies: weakref.WeakKeyDictionary[nn.Module, Strategy] = weakref.WeakKeyDictionary()


def data_parallel(
    model: nn.Module,
    optimizer: optim.Optimizer | None = None,
    *,
    strategy: str | Strategy | None = None,
    compression: str | choices.Settings | None = None,
    unused_parameters: bool = False,
    bucket_bytes: int | None = None,
) -> nn.Module:
    """Train `model` on all ranks' batches together. Returns the same model, with the chief's weights.

    `strategy` is `auto` (the default), `allreduce`, `ps`, `none` or an object; `compression` is `none` (the default),
    `fp16`, `bf16`, `powersgd`, `dgc`, the settings of one of the last two (PowerSGD, DGC), or `auto`. The job file's
    `strategy:` overrides both. A strategy that takes part in the optimizer's step needs `optimizer`.

    Strategy `auto` never changes the result: it computes the update of dense synchronous training. Compression `auto`
    permits lossy ones, and uses the one that makes a step shortest.

    Gradients travel in groups of at most `bucket_bytes`, as they become ready: None is 4 MB on a processor and 25 MB on
    a GPU. A larger tensor is a group of its own.

    Give `unused_parameters=True` where some backward passes do not reach every parameter; without it that is an error
    which names them.
    """
    chosen = choices.choose(strategy, compression, os.environ)
    if isinstance(chosen, choices.Choice):
        made = choices.make(chosen, unused_parameters=unused_parameters, bucket_bytes=bucket_bytes)
    else:
        made = chosen
    attached = made.attach(model, optimizer)
    _strategies[model] = made
    return attached


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """Accumulate gradients of `model` over several backward passes: exchange them only in the first one after this."""
    if model not in _strategies:
        raise errors.StateError("this model was not given to data_parallel(): there is no exchange to hold back")
    return _strategies[model].no_sync()


def strategies_of(model: nn.Module) -> dict[str, Strategy]:
    """Return the strategies of this model and of the models in it, by their paths. A compiled model holds the one that
    was given to data_parallel().
    """
    return {path: _strategies[each] for path, each in model.named_modules() if each in _strategies}


def strategy_of(model: nn.Module) -> Strategy | None:
    """Return the strategy that keeps this model together, where it was given to data_parallel()."""
    return _strategies.get(model)
