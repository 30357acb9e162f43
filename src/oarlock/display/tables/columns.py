"""The columns of all tables: their titles, the side on which their cells stand, and which of them may be cut."""

from __future__ import annotations

import msgspec

from oarlock.display import marks


class Column(msgspec.Struct, frozen=True):
    """`weight`: columns with the greatest weight are cut first on a narrow terminal, down to `least` cells of text; a
    column of weight 0 is never cut. `colours` maps the text of a cell to its colour. Numbers stand on the `right`.
    """

    title: str
    weight: int = 0
    least: int = 8
    right: bool = False
    colours: dict[str, str] = {}


def _numbers(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, right=True) for title in titles)


_PHASE = Column("PHASE", colours=marks.COLOURS)
_WHERE = Column("WHERE, OR WHY", weight=9, least=16)
_ALL = (
    Column("ID"),
    Column("NAME", weight=3, least=10),
    _PHASE,
    Column("INTENT"),
    Column("TASKS", weight=1),
    Column("POOL", weight=2),
    Column("SINCE"),
    *_numbers("RAN"),
    Column("PROGRESS"),
)
JOBS = (*_ALL, _WHERE)
JOBS_WIDE = (*_ALL, *_numbers("LOSS", "AGE"), Column("OWNER", weight=2), *_numbers("PRIORITY", "COST"), _WHERE)
PHASE, POOL = (next(place for place, one in enumerate(JOBS) if one.title == title) for title in ("PHASE", "POOL"))
QUEUE = (
    Column("USER"),
    Column("POOL"),
    Column("NAME", weight=2),
    _PHASE,
    *_numbers("CPUS", "GPUS"),
    Column("NODES", weight=1),
)
QUEUE_EXPECTED = (*QUEUE, Column("EXPECTED", weight=9, least=16))
TASKS = (*(Column(title) for title in ("  TASK", "PHASE", "NODE", "GPUS", "STEP", "EXIT")), Column("DETAIL", weight=9))
METRICS = (
    Column("NAME", weight=1),
    Column("TASK", weight=2),
    Column("COURSE", weight=3),
    *_numbers("LAST", "LEAST", "GREATEST", "STEP", "POINTS"),
)
FILES = (Column("PATH", weight=1, least=20), *_numbers("SIZE", "AGE"))
NODES = (
    Column("NODE", weight=1),
    Column("STATE", colours={"ready": "green"}),
    *_numbers("CPUS", "MEMORY", "GPUS"),
    Column("BY OTHERS", weight=1),
    Column("TYPE", weight=1),
    Column("HELD BY", weight=9),
)
GPU_TYPES = (Column("GPU TYPE", weight=1), *_numbers("GPUS", "HELD", "BY OTHERS", "FREE"))
HISTORY = (
    Column("USER"),
    Column("POOL"),
    Column("NAME", weight=2),
    *_numbers("ATTEMPT"),
    Column("FROM"),
    Column("TO"),
    Column("HELD", weight=9),
)
SIZES = (Column("SIZE"), *_numbers("GPUS"), Column("TYPE"), *_numbers("CPUS", "MEMORY"), Column("SOURCE"))
USAGE_HOURS = _numbers("DEVICE-HOURS", "USEFUL", "IDLE", "CPU-HOURS", "COST")
POOL_USE = (Column("POOL", weight=1), Column("RESOURCE"), *_numbers("USED", "AT MOST", "ENTITLED", "SAMPLES"))
USERS = (Column("USER", weight=1), Column("RIGHT"))
TOKENS = (Column("SHA256"), Column("NOTE", weight=1))
SESSIONS = (Column("SHA256"), Column("BROWSER", weight=1), Column("BEGAN"), Column("USED"), Column("ENDS IN"))
SECRETS = (Column("SECRET", weight=1), Column("OWNER"), Column("SHARED WITH", weight=1))
