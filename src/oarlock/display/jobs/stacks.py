"""Stacks of a hung gang in groups: ranks that stand at the same place are one group, and the odd one out comes first.

In a hang most ranks wait for one another in the same call. The rank that is elsewhere is the one to look at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from oarlock.spec import attempts

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*:\s*$")
_FRAME = re.compile(r'^\s*File "([^"]*)", line (\d+) in (.*)$')
_LIBRARY = re.compile(r"/(?:site-packages|dist-packages|lib/python\d[\d.]*)/|^<")


class Frame(msgspec.Struct, frozen=True):
    path: str
    line: int
    function: str

    @property
    def place(self) -> str:
        return f"{self.path.rpartition('/')[2]}:{self.line}"


class Group(msgspec.Struct, frozen=True):
    """Ranks with the same stack of their main thread. `text` is the whole text of the first of them."""

    ranks: tuple[str, ...]
    frames: tuple[Frame, ...]
    text: str

    @property
    def where(self) -> str:
        """Return the innermost call, and the line of the user's code that led to it."""
        if not self.frames:
            return "no Python frame"
        innermost = self.frames[0]
        own = next((frame for frame in self.frames if not _LIBRARY.search(frame.path)), innermost)
        return f"{innermost.function}, {own.place}"


def groups(taken: Sequence[attempts.Stacks]) -> list[Group]:
    """Return the groups of the last stacks of each rank, the smallest group first."""
    latest = {(one.task, process): text for one in taken for process, text in one.stacks.items()}
    several = {task for task, process in latest if process != "0"}
    found: dict[tuple[tuple[str, int, str], ...], list[tuple[str, str]]] = {}
    frames: dict[tuple[tuple[str, int, str], ...], tuple[Frame, ...]] = {}
    for (task, process), text in latest.items():
        main = main_thread(text)
        key = tuple((frame.path.rpartition("/")[2], frame.line, frame.function) for frame in main)
        frames.setdefault(key, main)
        found.setdefault(key, []).append((f"{task}, process {process}" if task in several else task, text))
    made = [Group(tuple(rank for rank, _ in ranks), frames[key], ranks[0][1]) for key, ranks in found.items()]
    return sorted(made, key=lambda group: (len(group.ranks), group.ranks))


def main_thread(text: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread, the innermost first: Python writes the main thread last."""
    threads: list[list[Frame]] = [[]]
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif frame := _FRAME.match(line):
            threads[-1].append(Frame(frame[1], int(frame[2][:9]), frame[3]))
    return tuple(next((thread for thread in reversed(threads) if thread), ()))
