"""The events of a task's processes, as the agent reads them."""

from __future__ import annotations

import json

from oarlock.agent.protocol import events


def test_the_first_process_alone_tells_of_a_straggler(tmp_path):
    files = [tmp_path / f"events-{number}.jsonl" for number in range(2)]

    def tell(number, **fields):
        with files[number].open("a") as file:
            file.write(json.dumps({"event": "progress", **fields}) + "\n")

    read = events.Events(str(tmp_path), 2)
    tell(0, step=5, step_s=0.5, slowest_rank=0, slowest_s=0.4, fastest_s=0.2)
    tell(1, step=6, step_s=0.6, slowest_rank=9)
    read.poll()
    assert read.progress == {"step": 6, "step_s": 0.6, "slowest_rank": 0, "slowest_s": 0.4, "fastest_s": 0.2}
    tell(0, step=7, step_s=0.2)
    read.poll()
    assert read.progress == {"step": 7, "step_s": 0.2}, "it is not slow any more"


def test_a_hello_of_another_process_does_not_hide_a_lost_round(tmp_path):
    told = [{"can_rejoin": True, "lost_round": 3}, {"can_rejoin": False}, {"can_rejoin": True, "lost_round": 2}]
    for number, fields in enumerate(told):
        (tmp_path / f"events-{number}.jsonl").write_text(json.dumps({"event": "hello", **fields}) + "\n")
    read = events.Events(str(tmp_path), len(told))
    read.poll()
    assert read.hello == {"can_rejoin": True, "lost_round": 3}
