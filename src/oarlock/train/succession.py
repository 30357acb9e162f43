"""The place of a dead worker, in lockstep with parameter servers: its successor goes on where the others wait.

The others keep their process and their step. They wait for the gradient of the dead worker, or for its value in an
exchange, and meanwhile one of them gives its state to the successor: that at the last boundary of steps before an
exchange of gradients. The successor takes the weights from the servers and repeats the step of the dead worker. If the
servers have the update of that step already, they pass over the gradient; the step then moves schedulers, the position
in the data and the count of exchanges alone. So the result is that of an undisturbed run.

Where a worker dies while it sends its gradient to several servers, some of them may have made the update. The weights
before it are those of the waiting workers then, which take no weights before all servers have answered.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from oarlock.train import errors, states, worlds
from oarlock.train.strategies.strategy import Strategy, figures_of, waited

_TIMES = 8
_SLACK_BYTES = 64 << 20
"""The state of a session may have so many times the bytes of its models, and so many more."""


class Succession:
    """The part of a session in lockstep that a successor needs."""

    def __init__(self, strategy: Strategy, state: Mapping[str, Any]) -> None:
        self._strategy, self._state = strategy, state
        self._ours = {id(parameter) for parameter in strategy.parameters}
        self._mark = states.Mark(state, self._ours)
        self._position: dict[str, Any] = {}  # at the mark; empty before the first one
        self._exchanges = 0  # of gradients, at the mark

    @property
    def joins(self) -> bool:
        """Whether this process takes the place of one that died."""
        return self._strategy.takes_place

    def begin(self, step: int, keep_waiting: Callable[[], None]) -> None:
        """Let the others wait for this process from now on, and this one for them."""
        self._strategy.outlast(step, self.pack, keep_waiting)

    def mark(self, position: Callable[[], dict[str, Any]]) -> None:
        """Remember the state at a boundary of steps, unless gradients wait for their exchange."""
        made = waited([self._strategy])[0]
        if self._position and made == self._exchanges:
            return
        assert worlds.exchanges is not None
        self._exchanges = made
        self._position = {**position(), "exchanges": worlds.exchanges.begun, "version": self._strategy.version}
        self._mark.take()

    def pack(self, weights: bool) -> bytes | None:
        """Return the state at the mark, for a successor. None where this process has none."""
        if not self._position or (weights and self._strategy.version != self._position["version"]):
            return None
        packed = io.BytesIO()
        frozen = {name: _frozen(kept, self._ours) for name, kept in self._models().items()}
        there = [each.detach() for each in self._strategy.parameters] if weights else []
        position = json.dumps(self._position)  # the types of torch's version, for one, do not travel
        torch.save({"position": position, "state": self._mark.values, "frozen": frozen, "weights": there}, packed)
        return packed.getvalue()

    @torch.no_grad()
    def take(self) -> dict[str, Any]:
        """Take the state that another process gives. Return the position."""
        size = sum(each.nbytes for model in self._models().values() for each in (*model.parameters(), *model.buffers()))
        given = torch.load(
            io.BytesIO(self._strategy.take_place(_TIMES * size + _SLACK_BYTES)), map_location="cpu", weights_only=True
        )
        position: dict[str, Any] = json.loads(given["position"])
        missing = self._state.keys() - given["state"].keys()
        if missing:
            raise errors.StateError(f"the other processes have no state of {', '.join(sorted(missing))}")
        for name, kept in self._state.items():
            states.put_back(kept, given["state"][name], self._ours)
        for name, model in self._models().items():
            for parameter, value in zip(_frozen(model, self._ours), given["frozen"][name]):
                parameter.copy_(value)
        for parameter, value in zip(self._strategy.parameters, given["weights"]):
            parameter.copy_(value)
        assert worlds.exchanges is not None
        worlds.exchanges.succeed(position["exchanges"])
        self._strategy.go_on_from(position["version"])
        return position

    def _models(self) -> dict[str, nn.Module]:
        return {name: kept for name, kept in self._state.items() if isinstance(kept, nn.Module)}


def of(strategies: list[Strategy], state: Mapping[str, Any], *, others: bool) -> Succession | None:
    """Return the succession of a session with these strategies. `others`: it has state of single ranks besides."""
    if len(strategies) != 1 or others or not figures_of(strategies) or not strategies[0].replaced_alone:
        return None
    return Succession(strategies[0], state)


def _frozen(model: nn.Module, ours: set[int]) -> list[torch.Tensor]:
    """Return the weights of a trained model that no exchange changes."""
    if not states.trains(model, ours):
        return []
    return [each.detach() for each in model.parameters() if id(each) not in ours]
