"""A line of a log as a terminal shows it: colours as classes of the style sheet, and text over text. Pure.

A carriage return goes back to the line's begin, so that later text covers earlier text: a progress bar is one line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_CHARACTERS = 5000
MOST_RUNS = 100
"""Further text of a line has the style of its last run."""
_TOKENS = re.compile(
    r"(?P<style>\x1b\[[0-9;:]*m)|(?P<clear>\x1b\[[0-2]?K)|(?P<back>\r)"
    r"|(?P<other>\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_]))"
)
_CUBE, _GREYS = 16, 232
_LEVELS = (0, 95, 135, 175, 215, 255)
_FEW = 48


class Run(NamedTuple):
    """Text in one style. `classes` are those of the style sheet: `f1` to `f7`, `g1` to `g7` for grounds, `bold`."""

    text: str
    classes: str = ""


class _Style(NamedTuple):
    front: int = 0  # 1 to 7: red, green, yellow, blue, magenta, cyan, and grey for black and white
    ground: int = 0
    bold: bool = False

    def classes(self) -> str:
        words = [f"f{self.front}" if self.front else "", f"g{self.ground}" if self.ground else ""]
        return " ".join(word for word in (*words, "bold" if self.bold else "") if word)


_Layer = tuple[list[tuple[str, _Style]], bool]  # the text between two carriage returns, and whether it clears the line


def runs(line: str, most: int = MOST_CHARACTERS) -> list[Run]:
    """Return the visible text of a line, at most `most` characters of it."""
    if "\x1b" not in line and "\r" not in line:
        return [Run(_cut(line, most))] if line else []
    shown = _covered(_layers(line))
    total = sum(len(text) for text, _ in shown)
    found: list[Run] = []
    left = most
    for text, style in shown:
        if left <= 0:
            break
        part = text[:left]
        left -= len(part)
        if found and (len(found) == MOST_RUNS or found[-1].classes == style.classes()):
            found[-1] = Run(found[-1].text + part, found[-1].classes)
        elif part:
            found.append(Run(part, style.classes()))
    return found if total <= most else [*found, Run(_note(total))]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + _note(len(text))


def _note(total: int) -> str:
    return f"… ({total:,} characters)"


def _layers(line: str) -> list[_Layer]:
    layers: list[_Layer] = []
    parts: list[tuple[str, _Style]] = []
    style, clears, at = _Style(), False, 0
    for token in _TOKENS.finditer(line):
        if token.start() > at:
            parts.append((line[at : token.start()], style))
        at = token.end()
        if token["style"]:
            style = _styled(style, token["style"][2:-1])
        elif token["clear"]:
            clears = True
        elif token["back"]:
            layers.append((parts, clears))
            parts, clears = [], False
    if at < len(line):
        parts.append((line[at:], style))
    layers.append((parts, clears))
    return layers


def _covered(layers: list[_Layer]) -> list[tuple[str, _Style]]:
    """Return what is seen of the layers: of an earlier one only the part that reaches beyond all later ones."""
    shown: list[tuple[str, _Style]] = []
    width = 0
    for parts, clears in reversed(layers):
        at = 0
        for text, style in parts:
            at += len(text)
            if at > width:
                shown.append((text[len(text) - min(len(text), at - width) :], style))
                width = at
        if clears and width:
            break
    return shown


def _styled(style: _Style, codes: str) -> _Style:
    numbers = [int(code[:9] or 0) for code in re.split("[;:]", codes, maxsplit=32)[:32]]
    at = 0
    while at < len(numbers):
        code = numbers[at]
        at += 1
        if code == 0:
            style = _Style()
        elif code in (1, 22):
            style = style._replace(bold=code == 1)
        elif code in (38, 48):
            colour, used = _extended(numbers[at:])
            at += used
            style = style._replace(front=colour) if code == 38 else style._replace(ground=colour)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style = style._replace(front=_basic(code % 10))
        elif 40 <= code <= 47 or 100 <= code <= 107:
            style = style._replace(ground=_basic(code % 10))
        elif code == 39:
            style = style._replace(front=0)
        elif code == 49:
            style = style._replace(ground=0)
    return style


def _basic(number: int) -> int:
    return number if 1 <= number <= 6 else 7


def _extended(numbers: list[int]) -> tuple[int, int]:
    """Return the nearest of our colours for `5;N` or `2;R;G;B`, and the number of codes used."""
    if numbers[:1] == [5] and len(numbers) >= 2:
        number = numbers[1]
        if number < _CUBE:
            return _basic(number % 8), 2
        if number >= _GREYS:
            return 7, 2
        place = number - _CUBE
        return _nearest(_LEVELS[place // 36 % 6], _LEVELS[place // 6 % 6], _LEVELS[place % 6]), 2
    if numbers[:1] == [2] and len(numbers) >= 4:
        return _nearest(*numbers[1:4]), 4
    return 0, len(numbers)


def _nearest(red: int, green: int, blue: int) -> int:
    least, most = min(red, green, blue), max(red, green, blue)
    if most - least < _FEW:
        return 7
    middle = (least + most) / 2
    return (red > middle) + 2 * (green > middle) + 4 * (blue > middle)
