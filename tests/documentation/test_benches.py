"""The benches start in an environment that has only what they need, and measure all that they say."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bench import plots, table
from bench.train import advising, networks, pictures, together, working
from torch import nn

from oarlock.train import hooks

HIDDEN = """
import sys
for name in ("playwright", "axe_playwright_python"):
    sys.modules[name] = None  # an import of it fails
from bench import __main__ as benches
print(*benches.ALL)
"""


def test_benches_are_listed_without_a_browser_library() -> None:
    told = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert {"ratios", "pods", "visits"} <= set(told.stdout.split())


def test_the_bytes_of_a_network_are_compared_in_its_full_width() -> None:
    command = [sys.executable, str(together.SCRIPT), "alone", "1", "whole ResNet-50"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    size = json.loads(done.stdout.splitlines()[-1])["bytes"]
    assert size == sum(4 * torch.Size(shape).numel() for shape in networks.shapes(networks.resnet50()))
    for fewer, is_reached in ((269.0, False), (271.0, True)):
        row = together.fewer_bytes("dgc-half", "ResNet-50's shapes", [{"bytes": size, "sent": size / fewer}])
        assert (row.reach, row.reached) == (270.0, is_reached)


def test_every_ready_made_hook_is_measured(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    measured = working.hooks(model, torch.optim.SGD(model.parameters(), 0.1), str(tmp_path), 10)
    ready = [each for _, each in inspect.getmembers(hooks, inspect.isclass) if each.__module__ == hooks.__name__]
    assert {type(each) for each in measured} == set(ready)


def test_a_prediction_that_was_not_checked_fails_the_bench() -> None:
    checked = [
        {"strategy": strategy, "workers": workers, "servers": 0, "speedup": 3.0, "measured": 2.5, "error": 0.2}
        for strategy in advising.STRATEGIES
        for workers in (2, *advising.CHECKED)
    ]
    told = {"predictions": checked, "refused": {}, "unchecked": {}}
    assert [row.value for row in advising.rows(told)] == [20.0] * len(advising.STRATEGIES) * len(advising.CHECKED)
    last = {**checked[-1], "measured": None, "error": None}
    told = {"predictions": [*checked[:-1], last], "refused": {}, "unchecked": {"ps with 8 workers": "a port is taken"}}
    with pytest.raises(RuntimeError, match="ps with 8 workers: a port is taken"):
        advising.rows(told)
    told = {"predictions": checked[:3], "refused": {"dgc": "it is for SGD"}, "unchecked": {}}
    with pytest.raises(RuntimeError, match="dgc: it is for SGD"):
        advising.rows(told)


PAGE = """# Figures

<!-- figures: begin -->
Measured on this machine, 2026-11-20.

| figure | measured | goal | reached | details | day, commit |
|---|---|---|---|---|---|
| one | 1 s |  |  |  | 2026-11-20 12345678 |
| two | 2 s | ≤ 3 s | yes | n=2 | 2026-11-21 23456789 |
<!-- figures: end -->
"""


def test_a_row_that_is_measured_again_has_its_own_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "PAGE", tmp_path / "benchmarks.md")
    table.PAGE.write_text(PAGE)
    table.save([table.Row("bench", "one", 1.5, "s")], "Measured on that machine.", "2026-11-29 3456789a")
    days = {what: cells[-1] for what, cells in table.saved(table.PAGE.read_text()).items()}
    assert days == {"one": "2026-11-29 3456789a", "two": "2026-11-21 23456789"}
    assert "this machine" not in table.PAGE.read_text()


def test_every_saved_figure_has_its_day() -> None:
    text = table.PAGE.read_text()
    for place in (table.FIGURES, table.PAGES, table.GPUS):
        for what, cells in table.saved(text, place).items():
            assert re.fullmatch(r"20\d\d-\d\d-\d\d [0-9a-f]{8,}\+?", cells[-1]), what


def test_the_text_beside_the_figures_says_what_the_saved_rows_say() -> None:
    """Rows that are saved anew, or for the first time, change the text, too."""
    text = table.PAGE.read_text()
    page, saved = (table.PAGE.parent / "strategies.md").read_text(), pictures.Saved(text)
    alone = sorted(re.findall(r"\| DDP, 25 MB MLP,.*?alone a step takes (\d+) ms", text), key=int)
    assert f" step takes {alone[0]} to {alone[-1]} ms alone" in page
    (fast,) = re.findall(r"\| DDP, 25 MB MLP, 1 Gbit/s,.*?alone a step takes (\d+) ms", text)
    assert f"({fast} ms in the row of 1 Gbit/s)" in text
    assert f"{advising.MEGABITS} Mbit/s, so slow" in text
    (links,) = set(re.findall(r"; links of (\d+) Mbit/s; ", text))
    assert (f"The saved rows are of {links} Mbit/s" in text) == (int(links) != advising.MEGABITS)
    ((ring, servers),) = saved.told(pictures.SENDERS, r"allreduce (\d+) ms, ps (\d+) ms, auto")
    assert abs(int(servers) / int(ring) - 2 / 3) < 0.05
    assert "`ps` takes two thirds of the time of `allreduce`, and `auto` chooses it" in page
    assert saved.told(pictures.SENDERS, "(chose ps, the best is ps)")
    cells = "`auto` against the best fixed choice, the worst of 3 links x 3 models, "
    lossless, every = (cells + kind for kind in ("lossless choices", 'compression="auto", all choices'))
    assert f"`auto` takes up to {saved.value(lossless):g} times the time of the best fixed lossless choice" in page
    assert f"`compression: auto` takes up to {saved.value(every):g} times that of the best of all choices" in page
    assert saved.told(lossless, r"10 Gbit/s, (\S+) [\d.]+ \(chose [^)]+, the best is ps\)") == [("mlp",)]
    assert "Over 10 Gbit/s servers were the best lossless choice for one of three models, the `mlp`" in page
    best = saved.told(every, r"the best is (\S+?)\)")
    assert len(best) == 9
    assert ("dgc-warm",) not in best
    assert "the best choice in no cell" in page


def test_the_pictures_of_the_strategies_are_drawn_from_the_saved_rows(tmp_path: Path) -> None:
    """Each of them stands on the page, and a row that it needs is not renamed unnoticed."""
    rows = pictures.Saved(table.PAGE.read_text())
    page = (table.PAGE.parent / "strategies.md").read_text()
    for name, panels in pictures.PICTURES.items():
        assert all(panel.bars for panel in panels(rows)), name
        assert f"(benchmarks/{name}.png)" in page, name
        assert (table.PAGE.parent / pictures.FOLDER / f"{name}.png").exists(), name
    plots.bars(pictures.accuracy(rows), tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_whose_rows_are_not_saved_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = table.PAGE.read_text().replace("| a worker's SIGKILL to the next step, torchrun |", "| another figure |")
    with pytest.raises(pictures.Missing, match="torchrun"):
        pictures.recovery(pictures.Saved(text))
    pictures.draw(pictures.Saved(text), tmp_path)
    assert "recovery.png is not drawn" in capsys.readouterr().err
    assert {path.stem for path in tmp_path.iterdir()} == set(pictures.PICTURES) - {"recovery"}
