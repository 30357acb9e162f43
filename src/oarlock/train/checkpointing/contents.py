"""The objects of a session that a checkpoint holds: their states are captured, and taken again.

A model, an optimizer and a position in the data are the same on all ranks, or divided among any number of them. The
state of a single rank fits only if the number of ranks is the same as when it was saved; a strategy may take the states
of all former ranks (`inherit`). What a script keeps for each rank is dropped only where the script permits it.

The state of a single rank may have other names on other ranks, or none on some. So the ranks decide together what there
is: whether one of them trains, and what they kept and keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oarlock.train import errors, worlds
from oarlock.train.batches import Batches
from oarlock.train.checkpointing import pieces, rng
from oarlock.train.checkpointing.checkpoints import Restored
from oarlock.train.moments import Hook
from oarlock.train.strategies.strategy import Strategy

CHOICES = "oarlock.choices"
"""The shared state with the choices of the strategies, by the strategy's name."""

REMEDY = (
    "Pass what the steps change, as in Session(model=model, optimizer=optimizer), or an object that saves and "
    "loads it by state_dict and load_state_dict."
)


def check(state: Mapping[str, Any]) -> None:
    """Raise StateError for an object that cannot be saved."""
    for name, value in state.items():
        if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
            raise errors.StateError(
                f"{name} is a {type(value).__name__} without state_dict and load_state_dict: it cannot be saved. "
                "Leave it out, or give it the two methods."
            )


class Contents:
    """The objects: `state` those that all ranks share, `own` this rank's, and the `heirs` of all ranks' states.

    `drops`: the state of each rank may be dropped, where the number of ranks has changed. With a strategy that is not
    in lockstep the chief alone saves, and each rank restores by itself.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        own: Mapping[str, Any],
        heirs: Mapping[str, Strategy],
        world: worlds.World,
        say: Callable[[str], None],
        *,
        drops: bool = False,
    ) -> None:
        self._state, self._own, self._heirs = state, own, heirs
        self._world, self._say, self._drops = world, say, drops
        self._apart = not all(one.lockstep for one in heirs.values())

    @property
    def trains(self) -> bool:
        """Whether this rank has an object that the steps of a training may change."""
        own = [each for name, each in self._own.items() if name not in self._heirs]
        return any(not isinstance(each, (Batches, Hook)) for each in (*self._state.values(), *own))

    def warn(self) -> None:
        """Say so if no rank has one: then no run can go on from the checkpoints that are about to be made.

        All ranks call this when they begin. A process that joins them later says nothing.
        """
        if not worlds.joining() and not any(self._gather(self.trains)):
            self._say(f"this session saves no model, so no run can go on from its checkpoints. {REMEDY}")

    def capture(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state that all ranks share, which counts on the chief alone, and this rank's own state."""
        divided: dict[str, Any] = {}
        shared: dict[str, Any] = {}
        for name, kept in self._state.items():
            if pieces.divides(kept):
                shared[name] = pieces.split(kept.state_dict(), name, divided)
            elif self._world.is_chief:
                shared[name] = kept.state_dict()
        choices = {name: one.choice() for name, one in self._heirs.items() if one.choice()}
        if choices:
            shared[CHOICES] = choices
        own = {"per_rank": {name: pieces.kept_whole(kept.state_dict(), name) for name, kept in self._own.items()}}
        return shared, {"rng": rng.capture(), **own, **({"pieces": divided} if divided else {})}

    def take(self, restored: Restored) -> None:
        """Load the states. Where ranks restore by themselves, the own state in the checkpoint is the chief's."""
        own = not self._apart or self._world.is_chief
        if restored.step and not any(self._gather(self.trains)):
            raise errors.CheckpointError(
                f"{restored.path} goes on after step {restored.step}, but this session restores nothing that is "
                f"trained: later steps would begin with untrained weights. {REMEDY} To begin again from the first "
                "step, pass resume=False."
            )
        kept_before = self._kept_before(restored) if own and restored.own is None else []
        mine = None if restored.own is None else restored.own.get("pieces", {})
        joiner = pieces.Pieces(restored.shards, mine, self._world.rank)
        self._take_shared(restored, joiner)
        used: list[str] = []
        if not own:
            pass
        elif restored.own is None:
            used = self._inherit(restored)
            lost = [name for name in kept_before if name not in used]
            kept_back = " and ".join(["the random generators' states", *lost])
            self._say(
                f"{restored.path.name} was saved by {restored.world_size} ranks, now {self._world.world_size}: "
                f"{kept_back} are dropped" + (f", {' and '.join(used)} goes on" if used else "")
            )
        else:
            for name, kept in self._own.items():
                if name in restored.own["per_rank"]:
                    kept.load_state_dict(joiner.joined(restored.own["per_rank"][name], name, kept))
            rng.reinstate(restored.own["rng"])
        self._say_unused(restored, used)

    def _gather(self, value: object) -> list[Any]:
        """Return the values of all ranks that restore together."""
        return [value] if self._apart else self._world.gather(value)

    def _kept_before(self, restored: Restored) -> list[str]:
        """Return the names of the states that any former rank kept, and any rank keeps now. The same on all ranks.

        CheckpointError if state that the script keeps for each rank would be lost.
        """
        before = [name for own in restored.inherited_states() for name in _names(own)]
        told = self._gather([list(dict.fromkeys(before)), {name: name in self._heirs for name in self._own}])
        inherits = {name: heir for _, names in told for name, heir in names.items()}
        kept = list(dict.fromkeys(name for names, _ in told for name in names if name in inherits))
        lost = [name for name in kept if not inherits[name]]
        if lost and not self._drops:
            raise errors.CheckpointError(
                f"{restored.path} was saved by {restored.world_size} ranks, now {self._world.world_size}: "
                f"{' and '.join(lost)} of each rank (per_rank) fit only as many ranks. Start {restored.world_size} "
                "processes again, permit the loss with Session(drop_per_rank=True), or begin again with resume=False."
            )
        return kept

    def _take_shared(self, restored: Restored, joiner: pieces.Pieces) -> None:
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
                kept.load_state_dict(joiner.joined(restored.shared[name], name, kept))
            except (RuntimeError, ValueError, KeyError) as cause:
                raise errors.CheckpointError(
                    f"{name} cannot load its state from {restored.path}: {cause}. "
                    "Build it as before, or start again with resume=False."
                ) from cause

    def _say_unused(self, restored: Restored, used: Sequence[str]) -> None:
        """Name the states of single ranks that nothing in this session takes."""
        taken = {*self._own, *used}
        chiefs = restored.chiefs
        unused = {name: chiefs["per_rank"][name] for name in _names(chiefs) if name not in taken}
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


def _names(own: Mapping[str, Any]) -> list[str]:
    """Return the names of the states in the own state of a rank that are not empty."""
    return [name for name, state in own.get("per_rank", {}).items() if not _empty(state)]


def _empty(state: Any) -> bool:
    """Return whether it is the state of an object that keeps none. A state may be a tensor, which has no truth."""
    return isinstance(state, dict) and not state
