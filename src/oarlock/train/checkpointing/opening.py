"""The checkpoints of a session: their directory, and the attempt and round of their names."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from oarlock.train import environment, errors, worlds
from oarlock.train.checkpointing import manifests
from oarlock.train.checkpointing.checkpoints import Checkpoints, Saved


def checkpoints(
    place: str | os.PathLike[str],
    world: worlds.World,
    given: environment.Environment,
    *,
    keep: int,
    apart: bool,
    say: Callable[[str], None],
    completed: Callable[[Saved], None],
    written: Callable[..., None] | None,
) -> Checkpoints:
    """Open the checkpoints in `place`. All ranks call it, unless they save `apart`.

    StateError in an evaluator: it is not a rank of the training, and would save its own state as the newest one.
    """
    if environment.named_place(world.rank)[0] == "evaluator":
        raise errors.StateError(
            f"this task is the job's evaluator, and a Session would save its state among the training's checkpoints "
            f"({place}): open no Session where OARLOCK_ROLE is evaluator, or evaluate in a hook of the other Session"
        )
    directory = Path(place).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise errors.CheckpointError(
            f"no checkpoints can be saved in {directory} ({cause}): use a directory that can be written"
        ) from cause
    # Outside of Oarlock every start of the script is a new attempt, so that the last checkpoint is the newest.
    newest = max((manifests.order(path) or (0,))[0] for path in (*manifests.attempted(directory), directory))
    ours = given.attempt or newest + 1, given.round_number
    attempt, round_number = ours if worlds.joining() else world.gather(ours)[0]
    return Checkpoints(
        directory,
        # Ranks that do not step together do not meet to save either: the chief's checkpoint is that of one rank.
        replace(world, rank=0, world_size=1) if apart else world,
        attempt=attempt,
        round_number=round_number,
        keep=1 if given.separate else keep,  # the others are in the object store
        say=say,
        completed=completed,
        task="{} {}".format(*environment.named_place(world.rank)[:2]) if given.separate else None,
        first=given.process == "0",
        written=written,
    )
