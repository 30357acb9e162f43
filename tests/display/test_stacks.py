"""The stacks of a hung gang: equal ones are one group, and the rank that stands elsewhere comes first."""

from __future__ import annotations

import pytest

from oarlock.display.jobs import stacks
from oarlock.spec import attempts

HEADER = "Thread 0x00007f1234567890 (most recent call first):\n"
SERVER = HEADER + '  File "/usr/lib/python3.11/threading.py", line 320 in wait\n\n'
LAST = "Current thread 0x00007f00000000{rank:02x} (most recent call first):\n"
WAITING = (
    '  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", line 2810 in all_reduce\n'
    '  File "/home/{rank}/train.py", line 88 in step\n'
    '  File "/home/{rank}/train.py", line 120 in <module>\n'
)
LOADING = '  File "/home/{rank}/data.py", line 7 in __next__\n  File "/home/{rank}/train.py", line 80 in step\n'


def taken(rank: int, frames: str, at: float = 1.0, process: str = "0") -> attempts.Stacks:
    text = (SERVER + LAST + frames).format(rank=rank)
    return attempts.Stacks(task=f"worker-{rank}", at=at, stacks={process: text})


def told(found: list[attempts.Stacks]) -> list[tuple[int, str, str]]:
    return [(len(group.ranks), group.ranks[0], group.where) for group in stacks.groups(found)]


def test_the_odd_one_out_comes_first() -> None:
    gang = [taken(rank, LOADING if rank == 3 else WAITING) for rank in range(8)]
    assert told(gang) == [(1, "worker-3", "__next__, data.py:7"), (7, "worker-0", "all_reduce, train.py:88")]


def test_the_last_stacks_of_a_rank_count() -> None:
    assert told([taken(0, LOADING), taken(1, WAITING), taken(0, WAITING, 2.0)]) == [
        (2, "worker-0", "all_reduce, train.py:88")
    ]


def test_processes_of_a_task_are_named_where_there_are_several() -> None:
    gang = [taken(0, WAITING), taken(0, LOADING, process="1"), taken(1, WAITING)]
    assert told(gang)[0] == (1, "worker-0, process 1", "__next__, data.py:7")
    assert told(gang)[1] == (2, "worker-0, process 0", "all_reduce, train.py:88")


@pytest.mark.parametrize("text", ["", "no frames here", "\x00", HEADER, 'File "x", line many in y'])
def test_a_text_without_frames_is_a_group_too(text: str) -> None:
    found = stacks.groups([attempts.Stacks(task="worker-0", at=1.0, stacks={"0": text})])
    assert [(group.ranks, group.where, group.text) for group in found] == [(("worker-0",), "no Python frame", text)]


def test_the_text_of_a_real_hang_is_understood() -> None:
    import faulthandler
    import tempfile

    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read().decode()
    (group,) = stacks.groups([attempts.Stacks(task="worker-0", at=1.0, stacks={"0": text})])
    assert group.frames[0].function == "test_the_text_of_a_real_hang_is_understood"
    assert group.where.startswith("test_the_text_of_a_real_hang_is_understood, test_stacks.py:")
