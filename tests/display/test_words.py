"""Durations, times, amounts, marks and bars, as the command line and the pages show them."""

from __future__ import annotations

import pytest

from oarlock.display import amounts, bars, durations, findings, marks
from oarlock.display.pools import poolbars
from oarlock.spec import phases


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.123456, "0.1235"), (1e-7, "1e-07"), (12345.6, "12,346"), (2.5e9, "2.5e+09"), (float("nan"), "nan")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert amounts.number(value) == text


def test_counts_agree_with_their_nouns() -> None:
    counted = [amounts.counted(count, "GPU") for count in (0, 1, 1.0, 0.5, 2400)]
    assert counted == ["0 GPUs", "1 GPU", "1 GPU", "0.5 GPUs", "2,400 GPUs"]
    assert amounts.of_resource("memory", 2 << 30) == "2 GiB"
    assert amounts.of_resource("cpus", 0.5) == "0.5 CPUs"
    assert amounts.gpus([3, 0, 1]) == " (GPUs 0-1, 3)"
    assert amounts.gpus([2, 2]) == " (GPU 2)"
    assert amounts.gpus([]) == ""


def test_durations_and_times() -> None:
    assert [durations.age(age) for age in (-1, 59, 60, 7200, 200_000)] == ["0s", "59s", "1m", "2h", "2d"]
    assert [durations.whole(age) for age in (0.4, 59.94, 59.96, 60)] == ["0 s", "60 s", "60 s", "1m 00s"]
    assert durations.text(-3.0) == "0.0 s"
    then = 1_700_000_000.0
    assert durations.clock(then, then).count(":") == 1
    assert durations.moment(then, then).count(":") == 2
    assert durations.clock(then, then + 7 * 86_400).endswith(" Nov")
    assert durations.moment(then, then + 7 * 86_400).startswith("2023-11-1")


def test_every_phase_has_its_own_mark() -> None:
    """A colour may be shared; a reader who cannot see it tells the phases apart by the glyph."""
    assert {*phases.Phase, marks.FROZEN} == set(marks.PHASES)
    assert len({mark.glyph for mark in marks.PHASES.values()}) == len(marks.PHASES)
    assert marks.word("FAILED") == "✗ FAILED"
    assert marks.word("FAILED", unicode=False) == "FAILED"
    assert marks.COLOURS["✗ FAILED"] == marks.COLOURS["FAILED"] == "red"
    assert set(findings.MARKS) == set(findings.State)


def test_a_progress_bar_fits_its_width() -> None:
    assert bars.progress(0.5, 10, unicode=False) == "[#####-----]"
    assert bars.progress(0.001, 10, unicode=False) == "[#---------]", "the first steps are seen"
    assert bars.progress(1.5, 10, unicode=False) == "[##########]"
    assert len(bars.progress(0.5, 1000)) == bars.WIDEST + 2
    assert bars.progress(0.5, bars.NARROWEST - 1) == ""


def test_a_course_is_drawn_from_the_least_to_the_greatest() -> None:
    assert bars.sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
    assert bars.sparkline([5, 5], 8) == "▁▁"
    assert bars.sparkline([0, 1], 8, unicode=False) == "_#"
    assert bars.sparkline([], 8) == ""
    assert len(bars.sparkline(list(range(1000)), 32)) == 32


POOLS = [
    # used, entitled, reserved, limit
    ((0, 0, 0, None), "................"),
    ((0, 0, 0, 16), "...............]"),
    ((8, 16, 0, None), "########--------"),
    ((16, 16, 0, 16), "###############]"),
    ((16, 8, 0, None), "########++++++++"),
    ((6, 8, 4, 16), "###|##--.......]"),
    ((0, 0, 4, None), "...............|"),
    ((1, 1000, 0, None), "#---------------"),
    ((4, 4, 0, 1_000_000), "####...........]"),
    ((12, 8, 0, 8), "#######" + "###]" + "+++++"),
]


@pytest.mark.parametrize(("stretch", "drawn"), POOLS)
def test_the_bar_of_a_pool(stretch: tuple[float, float, float, float | None], drawn: str) -> None:
    glyphs = {"used": "#", "borrowed": "+", "entitled": "-", "open": ".", "reserved": "|", "limit": "]"}
    assert "".join(glyphs[kind] for kind in poolbars.kinds(poolbars.Stretch(*stretch), 16)) == drawn
