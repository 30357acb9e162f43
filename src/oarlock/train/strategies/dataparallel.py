"""Data parallelism in one call: `data_parallel(model, optimizer)`. A model keeps its strategy as long as it lives."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

from torch import nn, optim

from oarlock.train import errors
from oarlock.train.checkpointing import pieces
from oarlock.train.strategies import choices, replicas
from oarlock.train.strategies.strategy import Strategy

LOOK_EVERY = 64
_strategies: weakref.WeakKeyDictionary[nn.Module, Strategy] = weakref.WeakKeyDictionary()


def data_parallel(
    model: nn.Module,
    optimizer: optim.Optimizer | None = None,
    *,
    strategy: str | Strategy | None = None,
    compression: str | choices.Settings | None = None,
    unused_parameters: bool = False,
    bucket_bytes: int | Literal["tuned"] | None = None,
) -> nn.Module:
    """Train `model` on all ranks' batches together. Returns the same model, with the chief's weights.

    `strategy` is `auto` (the default), `allreduce`, `ps`, `none` or an object; `compression` is `none` (the default),
    `fp16`, `bf16`, `powersgd`, `dgc`, the settings of one of the last two (PowerSGD, DGC), or `auto`. The job file's
    `strategy:` overrides both. A strategy that takes part in the optimizer's step needs `optimizer`.

    Strategy `auto` never changes the result: it computes the update of dense synchronous training. Compression `auto`
    permits lossy ones, and uses the one that makes a step shortest. Only parameter servers exchange sparse gradients:
    where the job has some, `auto` chooses them for such a model.

    Gradients travel in groups of at most `bucket_bytes`, as they become ready: None is 4 MB on a processor and 25 MB on
    a GPU. A larger tensor is a group of its own. "tuned" measures some sizes in the first steps and keeps the best one,
    which is part of the checkpoint; with three ranks or more the last bits of the weights then depend on the choice.

    Give `unused_parameters=True` where some backward passes do not reach every parameter; without it that is an error
    which names them.
    """
    chosen = choices.choose(strategy, compression, os.environ)
    if isinstance(chosen, choices.Choice):
        if pieces.divides(model):
            raise errors.StateError(
                "this model is divided among the processes already (FSDP2, tensor parallelism), which average its "
                "gradients or share them: leave data_parallel() out, and pass Session(strategy=train.ModelParallel("
                "model)) for the measurements"
            )
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


def strategies_in(state: Mapping[str, Any]) -> dict[str, Strategy]:
    """Return the strategies of the models in these objects, by the model's name and path. A compiled model holds the
    one that was given to data_parallel(). StateError for a GradScaler that does not fit one of them.
    """
    found: dict[str, Strategy] = {}
    for name, _, one in _attached(state):
        if one not in found.values():
            found[name] = one
    _refuse_scalers(state, found.values())
    return found


def _refuse_scalers(state: Mapping[str, Any], strategies: Iterable[Strategy]) -> None:
    scalers = [name for name, each in state.items() if hasattr(each, "unscale_") and each.is_enabled()]
    for one in strategies if scalers else ():
        if one.why_no_scaler:
            raise errors.StateError(
                f"{scalers[0]} is a GradScaler, which {type(one).__name__} does not know: {one.why_no_scaler}. Use "
                "bfloat16 autocast, which needs none, or data_parallel(..., strategy='allreduce', compression='none')"
            )


def check_trained(state: Mapping[str, Any], step: int = 0) -> None:
    """Raise StateError where a model trains a parameter that its strategy does not exchange. To look at all parameters
    takes as long as a small exchange, so it is done at some steps alone.
    """
    if step % LOOK_EVERY:
        return
    attached = list(_attached(state))
    exchanged = {id(parameter) for _, _, one in attached for parameter in one.parameters}
    for _, model, one in attached:
        names = [name for name, each in replicas.trained(model) if id(each) not in exchanged]
        if names and one.parameters:
            raise errors.StateError(
                f"{', '.join(names[:3])}{' and others' if names[3:] else ''} did not require a gradient when the model "
                "was given to data_parallel(), and do now: each process would train them by itself. Freeze them after "
                "data_parallel(..., unused_parameters=True), and not before"
            )


def _attached(state: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module, Strategy]]:
    for name, each in state.items():
        for path, model in each.named_modules() if isinstance(each, nn.Module) else ():
            if model in _strategies:
                yield f"{name}.{path}" if path else name, model, _strategies[model]


def strategy_of(model: nn.Module) -> Strategy | None:
    """Return the strategy that keeps this model together, where it was given to data_parallel()."""
    return _strategies.get(model)
