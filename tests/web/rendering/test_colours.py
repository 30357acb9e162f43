"""The colours of the style sheet: series that anybody can tell apart, and marks that stand out from their ground.

The difference of two colours is CIEDE2000 (Sharma, Wu and Dalal, 2005). Eyes without red or green cones see colours as
Machado, Oliveira and Fernandes (2009) simulate it.
"""

from __future__ import annotations

import itertools
import math
import re

import pytest

from oarlock.display import marks
from oarlock.web.drawing import colours
from oarlock.web.rendering import assets

Triple = tuple[float, float, float]
SHEET = (assets.FOLDER / "oarlock.css").read_text()
BLOCKS = {
    "light": r"^:root \{",
    "dark": r'^:root\[data-theme="dark"\] \{',
    "system": r':root:not\(\[data-theme="light"\]\) \{',
}
STATES = sorted({mark.colour for mark in marks.PHASES.values()})
SERIES = [f"series-{number}" for number in range(colours.COLOURS)]
GROUNDS = ("ground", "raised")
EYES: dict[str, tuple[Triple, Triple, Triple]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
LEAST_APART = 12.0
"""Two series of which one is this far from the other are told apart side by side as lines of 1.5 px."""

LEAST_FROM_STATES = 10.0
LEAST_CONTRAST = 3.0


def theme(name: str) -> dict[str, str]:
    """Return the variables of a theme of the style sheet."""
    found = re.search(rf"{BLOCKS[name]}([^}}]*)\}}", SHEET, re.MULTILINE)
    assert found is not None
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", found[1]))


def linear(colour: str) -> Triple:
    """Return the parts of `#rrggbb` as linear light, from 0 to 1."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return red, green, blue


def seen(light: Triple, eyes: str) -> Triple:
    red, green, blue = (min(1.0, max(0.0, sum(a * b for a, b in zip(row, light, strict=True)))) for row in EYES[eyes])
    return red, green, blue


def lab(light: Triple) -> Triple:
    """Return CIE L*a*b* of linear sRGB under D65."""
    rows = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.072175), (0.0193339, 0.119192, 0.9503041))
    white = (0.95047, 1.0, 1.08883)
    x, y, z = (
        _cube(sum(a * b for a, b in zip(row, light, strict=True)) / one) for row, one in zip(rows, white, strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _cube(value: float) -> float:
    return value ** (1 / 3) if value > 216 / 24389 else (24389 / 27 * value + 16) / 116


def difference(one: Triple, other: Triple) -> float:
    """Return CIEDE2000 of two colours in L*a*b*."""
    mean = (math.hypot(*one[1:]) + math.hypot(*other[1:])) / 2
    stretch = 1.5 - 0.5 * math.sqrt(mean**7 / (mean**7 + 25**7))
    (l1, a1, b1), (l2, a2, b2) = one, other
    c1, c2 = math.hypot(a1 * stretch, b1), math.hypot(a2 * stretch, b2)
    h1, h2 = (math.degrees(math.atan2(b, a * stretch)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    hue = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    weight = 1.0
    for factor, times, offset in ((-0.17, 1, -30), (0.24, 2, 0), (0.32, 3, 6), (-0.2, 4, -63)):
        weight += factor * math.cos(math.radians(times * hue + offset))
    by_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2))
    by_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    by_hue = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2)) / (1 + 0.015 * chroma * weight)
    turned = 60 * math.exp(-(((hue - 275) / 25) ** 2))
    together = -math.sin(math.radians(turned)) * 2 * math.sqrt(chroma**7 / (chroma**7 + 25**7)) * by_chroma * by_hue
    return math.sqrt(by_light**2 + by_chroma**2 + by_hue**2 + together)


def contrast(one: str, other: str) -> float:
    """Return the contrast of WCAG 2."""
    low, high = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in map(linear, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, -1.0, 2.0), (50.0, 0.0, 0.0), 2.3669),
        ((50.0, 2.49, -0.001), (50.0, -2.49, 0.0011), 7.2195),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((22.7233, 20.0904, -46.694), (23.0331, 14.973, -42.5619), 2.0373),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_difference_of_two_colours_is_that_of_the_published_table(
    one: Triple, other: Triple, expected: float
) -> None:
    assert difference(one, other) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("name", ["light", "dark"])
def test_no_two_series_look_alike(name: str, eyes: str) -> None:
    found = {one: lab(seen(linear(theme(name)[one]), eyes)) for one in SERIES}
    near = {
        (one, other): round(apart, 1)
        for one, other in itertools.combinations(SERIES, 2)
        if (apart := difference(found[one], found[other])) < LEAST_APART
    }
    assert near == {}


@pytest.mark.parametrize("name", ["light", "dark"])
def test_no_series_has_the_colour_of_a_state(name: str) -> None:
    found = theme(name)
    near = {
        (one, state): round(apart, 1)
        for one, state in itertools.product(SERIES, STATES)
        if (apart := difference(lab(linear(found[one])), lab(linear(found[state])))) < LEAST_FROM_STATES
    }
    assert near == {}


@pytest.mark.parametrize("name", ["light", "dark"])
def test_marks_stand_out_from_their_ground(name: str) -> None:
    found = theme(name)
    edge = re.search(r"svg \.open \{[^}]*stroke: var\(--([\w-]+)\)", SHEET)
    legend = re.search(r"\.legend\.open \{ color: var\(--([\w-]+)\)", SHEET)
    assert edge is not None
    assert legend is not None
    drawn = [*SERIES, *STATES, "text", edge[1], legend[1]]
    low = {
        (one, ground): round(by, 2)
        for one, ground in itertools.product(drawn, GROUNDS)
        if (by := contrast(found[one], found[ground])) < LEAST_CONTRAST
    }
    assert low == {}
    assert contrast(found["blue"], found["line"]) >= LEAST_CONTRAST, "the used part of a bar from the open part"


def rule(selector: str) -> dict[str, str]:
    """Return the declarations of a rule of the style sheet."""
    found = re.search(rf"(?<![\w-]){re.escape(selector)} \{{([^}}]*)\}}", SHEET)
    assert found is not None, selector
    return dict(re.findall(r"([\w-]+): ([^;]+);", found[1]))


def blended(colour: str, ground: str, part: float) -> str:
    """Return a colour on its ground, of which `part` covers it, as a browser blends them."""
    pairs = [(int(colour[at : at + 2], 16), int(ground[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(part * over + (1 - part) * under):02x}" for over, under in pairs)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_a_forecast_stands_out_from_its_ground_and_from_what_is_held(name: str) -> None:
    """Its area is paler than any mark may be, so its edge has to stand out."""
    found, drawn = theme(name), rule("svg .forecast")
    whole = float(drawn.get("opacity", 1))
    marked = {one: rule(f"svg .{one.replace('series', 'fill')}")["color"] for one in (*SERIES, *STATES)}
    assert marked == {one: f"var(--{one})" for one in marked}
    assert drawn["stroke"] == "currentColor"
    edge = whole * float(drawn.get("stroke-opacity", 1))
    low = {
        (one, ground): round(by, 2)
        for one, ground in itertools.product(marked, GROUNDS)
        if (by := contrast(blended(found[one], found[ground], edge), found[ground])) < LEAST_CONTRAST
    }
    assert low == {}
    assert whole * float(drawn["fill-opacity"]) <= 0.5, "paler than what is held"


@pytest.mark.parametrize("one", SERIES)
def test_a_band_and_a_name_have_the_colour_of_their_line(one: str) -> None:
    colour = f"var(--{one})"
    assert rule(f".{one}") == {"stroke": colour}
    assert rule(f".band.{one}") == {"fill": colour}
    assert rule(f".key.{one}") == {"border-color": colour}


def test_the_dark_theme_is_one_whether_chosen_or_the_system_s() -> None:
    assert theme("dark") == theme("system")
    assert theme("dark").keys() == theme("light").keys()
