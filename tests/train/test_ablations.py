"""The measurement of the accuracy of compressions, which replaces methods of the library to leave out its tricks."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from bench.train import accuracy
from tests.train import crew


def measure(*words: str) -> None:
    sys.argv = [str(accuracy.SCRIPT), *words]
    runpy.run_path(str(accuracy.SCRIPT), run_name="__main__")


def test_every_method_trains(tmp_path: Path) -> None:
    words = ("digits", "0", *accuracy.METHODS)
    codes = crew.run(measure, *words, folder=tmp_path, world_size=1, env={"BENCH_STEPS": "2"})
    assert codes == [0], crew.output(tmp_path, 1)
    lines = [json.loads(line) for line in (tmp_path / "rank-0.txt").read_text().splitlines()]
    assert tuple(one["method"] for one in lines) == accuracy.METHODS
    assert all(0 <= one["accuracy"] <= 1 for one in lines)


def test_accuracies_of_other_code_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "FOLDER", tmp_path)
    kept = [
        {"seed": 0, "method": "dense", "accuracy": 0.5},
        {"seed": 0, "method": "DGC", "accuracy": 0.6, "code": "another"},
        {"seed": 0, "method": "plain top-k", "accuracy": 0.7, "code": accuracy.digest()},
    ]
    (tmp_path / "accuracy-digits.jsonl").write_text("\n".join(json.dumps(each) for each in kept))
    assert accuracy.known("digits") == {(0, "plain top-k"): 0.7}
