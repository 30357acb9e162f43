"""The taking of a restored checkpoint's states by the objects of a session.

A model, an optimizer and a position in the data are the same on all ranks. The state of a single rank fits only if the
number of ranks is the same as when it was saved; a strategy may take the states of all former ranks (`inherit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oarlock.train import errors
from oarlock.train.checkpointing import rng
from oarlock.train.checkpointing.checkpoints import Restored
from oarlock.train.strategies.strategy import Strategy
from oarlock.train.worlds import World

CHOICES = "oarlock.choices"
"""The shared state with the choices of the strategies, by the strategy's name."""


class Adoption:
    """The objects that take states: `state` the shared ones, `own` this rank's, `heirs` those of all ranks."""

    def __init__(
        self,
        state: Mapping[str, Any],
        own: Mapping[str, Any],
        heirs: Mapping[str, Strategy],
        say: Callable[[str], None],
    ) -> None:
        self._state, self._own, self._heirs, self._say = state, own, heirs, say

    def take(self, restored: Restored, world: World, *, own: bool) -> None:
        """Load the states. With `own=False` the own state in the checkpoint is another rank's, and stays there."""
        self._take_shared(restored)
        used: list[str] = []
        if not own:
            pass
        elif restored.own is None:
            used = self._inherit(restored)
            kept_back = " and ".join(
                ["the random generators' states", *(name for name in self._own if name not in used)]
            )
            self._say(
                f"{restored.path.name} was saved by {restored.world_size} ranks, now {world.world_size}: "
                f"{kept_back} are dropped" + (f", {' and '.join(used)} goes on" if used else "")
            )
        else:
            for name, kept in self._own.items():
                if name in restored.own["per_rank"]:
                    kept.load_state_dict(restored.own["per_rank"][name])
            rng.reinstate(restored.own["rng"])
        self._say_unused(restored, used)

    def _take_shared(self, restored: Restored) -> None:
        missing = [name for name in self._state if name not in restored.shared]
        if missing:
            raise errors.CheckpointError(
                f"{restored.path} holds {', '.join(sorted(restored.shared))}, but no {', '.join(missing)}. "
                "Leave it out of the Session, or start again with resume=False or another directory."
            )
        for name, choice in restored.shared.get(CHOICES, {}).items():
            if name in self._heirs:
                self._heirs[name].keep_choice(choice)
        dropped = sorted(set(restored.shared) - set(self._state) - {CHOICES})
        if dropped:
            self._say(f"{restored.path.name} also holds {', '.join(dropped)}, which this session does not use: dropped")
        for name, kept in self._state.items():
            try:
                kept.load_state_dict(restored.shared[name])
            except (RuntimeError, ValueError, KeyError) as cause:
                raise errors.CheckpointError(
                    f"{name} cannot load its state from {restored.path}: {cause}. "
                    "Build it as before, or start again with resume=False."
                ) from cause

    def _say_unused(self, restored: Restored, used: Sequence[str]) -> None:
        """Name the states of single ranks that nothing in this session takes."""
        states = restored.chiefs.get("per_rank", {})
        taken = {*self._own, *used}
        unused = {name: state for name, state in states.items() if name not in taken and not _empty(state)}
        if unused:
            strategies = [unused[name] for name in unused if name in ("strategy", *self._heirs)]
            compressed = any(kind in state for state in strategies for kind in ("residual", "error"))
            self._say(
                f"{restored.path.name} also holds {', '.join(sorted(unused))} of each rank, which this session does "
                "not use: dropped" + (", with the gradients that the compression kept back" if compressed else "")
            )

    def _inherit(self, restored: Restored) -> list[str]:
        """Hand the states of all former ranks to the strategies. Return the names of those that used them."""
        chiefs = restored.chiefs["per_rank"]
        return [
            name
            for name, one in self._heirs.items()
            if name in chiefs
            and one.inherit(
                chiefs[name],
                (own["per_rank"][name] for own in restored.inherited_states()),
                restored.world_size,
            )
        ]


def _empty(state: Any) -> bool:
    """Return whether it is the state of an object that keeps none. A state may be a tensor, which has no truth."""
    return isinstance(state, dict) and not state
