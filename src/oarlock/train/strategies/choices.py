"""The choice of a strategy: by the script's arguments, and over them by the job file's `strategy:`.

The agent passes the fields that the job file sets as a JSON object in OARLOCK_STRATEGY. So two runs of one script can
be compared without an edit of the script.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Union

import torch

from oarlock.train import errors
from oarlock.train.compression.dgc import DGC, DeepGradientCompression
from oarlock.train.compression.powersgd import LowRank, PowerSGD
from oarlock.train.servers import addresses
from oarlock.train.strategies import automatic, parameterservers
from oarlock.train.strategies.allreduce import AllReduce
from oarlock.train.strategies.independent import Independent
from oarlock.train.strategies.parameterservers import ParameterServers
from oarlock.train.strategies.strategy import Strategy

VARIABLE = "OARLOCK_STRATEGY"
KINDS = ("auto", "allreduce", "ps", "none")
WIRES = {"fp16": torch.float16, "bf16": torch.bfloat16}
COMPRESSIONS = ("none", *WIRES, "powersgd", "dgc", "auto")
Settings = Union[DGC, PowerSGD]  # evaluated, by a Python that may be 3.9


@dataclass(frozen=True)
class Choice:
    """A strategy by its names, which are those of the job file. `auto` is chosen later, by measurements."""

    kind: str
    compression: str = "none"
    settings: Settings | None = None
    servers: parameterservers.Settings = field(default_factory=parameterservers.Settings)
    bucket_bytes: int | str | None = None  # the job file's, which overrides the script's


def choose(
    strategy: str | Strategy | None, compression: str | Settings | None, environ: Mapping[str, str]
) -> Choice | Strategy:
    """Return the strategy that the script gives as an object, or the names of the one to make.

    Strategy `auto` stays a choice only where the job has parameter servers; else it becomes allreduce. Compression
    `auto` permits lossy ones. The job file wins, field by field. Where it names the strategy or the compression of the
    script, the script's settings of it hold. Raises StateError for a name that is not one of KINDS or COMPRESSIONS.
    """
    told = told_by(environ)
    given = strategy if isinstance(strategy, Strategy) else None
    if isinstance(strategy, Strategy):
        if not told:
            if compression is not None:
                raise errors.StateError(
                    "data_parallel() got a strategy object and a compression: give the compression to the object"
                )
            return strategy
        strategy = strategy.kind
    settings = compression if isinstance(compression, (DGC, PowerSGD)) else None
    if told.get("compression") == "dgc" and "warm_up_steps" in told:  # `oarlock advise` skips the warm-up
        own = settings if isinstance(settings, DGC) else DGC()
        settings = replace(own, warm_up_steps=int(told["warm_up_steps"]))
    kind = str(told.get("kind") or strategy or "auto")
    name = str(told.get("compression") or (_name(settings) if settings else compression) or "none")
    _check("strategy", kind, KINDS if given is None else (*KINDS, given.kind))
    _check("compression", name, COMPRESSIONS)
    if kind == "auto" and (name not in ("none", "auto") or addresses.given(environ) is None):
        kind = "allreduce"
    if isinstance(given, AllReduce) and kind == "allreduce" and name in ("none", *WIRES):
        return given.under(told, WIRES)
    if given is not None and kind == given.kind != "ps" and "compression" not in told:
        return given
    _check("strategy", kind, KINDS)
    if kind == "ps" and name == "auto":
        name = "none"
    if kind == "ps" and name != "none":
        raise errors.StateError(
            f"parameter servers do not compress gradients, but compression {name} was asked for: leave it out"
        )
    servers = (given.settings if isinstance(given, ParameterServers) else parameterservers.Settings()).under(told)
    if isinstance(given, ParameterServers) and kind == "ps" and servers == given.settings:
        return given
    return Choice(
        kind,
        name,
        settings if settings and name in (_name(settings), "auto") else None,
        servers=servers,
        bucket_bytes=told.get("bucket_bytes"),
    )


def make(choice: Choice, *, unused_parameters: bool, bucket_bytes: int | str | None) -> Strategy:
    """Return the strategy of these names. `bucket_bytes` is the script's."""
    if choice.bucket_bytes is not None:
        bucket_bytes = choice.bucket_bytes
    if choice.kind == "none":
        return Independent()
    if choice.kind == "ps":
        return ParameterServers(**asdict(choice.servers))
    if choice.kind == "auto" or choice.compression == "auto":
        servers = (automatic.SERVERS,) if choice.kind == "auto" else ()
        lossy = automatic.LOSSY if choice.compression == "auto" else ()
        return automatic.Automatic(
            lambda name: (
                ParameterServers(sharding=choice.servers.sharding)
                if name == automatic.SERVERS
                else _exchange(replace(choice, compression=name), unused_parameters, bucket_bytes)
            ),
            (*servers, *lossy),
        )
    return _exchange(choice, unused_parameters, bucket_bytes)


def _exchange(choice: Choice, unused_parameters: bool, bucket_bytes: int | str | None) -> automatic.Exchange:
    settings = choice.settings
    if choice.compression == "dgc":
        given = settings if isinstance(settings, DGC) else None
        return DeepGradientCompression(given, unused_parameters=unused_parameters)
    if choice.compression == "powersgd":
        return LowRank(settings if isinstance(settings, PowerSGD) else None, unused_parameters=unused_parameters)
    return AllReduce(unused_parameters=unused_parameters, bucket_bytes=bucket_bytes, wire=WIRES.get(choice.compression))


def _name(settings: Settings) -> str:
    return "dgc" if isinstance(settings, DGC) else "powersgd"


def told_by(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the job file's `strategy:`. Raises StateError where they are not what the agent passes."""
    try:
        told = json.loads(environ.get(VARIABLE) or "{}")
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise errors.StateError(f"{VARIABLE} is not a JSON object. Oarlock sets it from the job file: unset it.")
    return told


def _check(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise errors.StateError(
            f"{what} {name!r} is not one of {', '.join(known)}. Correct the script or the job file."
        )
