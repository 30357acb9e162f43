"""User's text made visible: characters that reorder or hide text are shown by their numbers.

A job's name or a log line may contain any character. Escaping keeps it text; this keeps it readable as it was sent.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import markupsafe

MOST_CHARACTERS = 2000
_PLAIN = re.compile(r"[\x20-\x7e\n\t]*")
_AS_IT_IS = re.compile(r"[\t\n !#-%(-;=?-~]*")
"""Text that HTML shows as it is."""
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """Return the text with `[U+202E]` in place of each character that would reorder, hide or break it."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(_shown(letter) for letter in text)


def escaped(text: str) -> str:
    """Return a text as HTML, with the characters shown by their numbers that would reorder, hide or break it."""
    return text if _AS_IT_IS.fullmatch(text) else str(markupsafe.escape(visible(text)))


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a long text with its end left out, and the number of its characters."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def shown(value: Any) -> Any:
    """Return a value for a template: text is made visible, and marked-up text is left as it is."""
    if type(value) is str:
        return visible(value)
    return value


def typed(text: str) -> markupsafe.Markup:
    """Return the text for a field in which it is edited, as it was typed. Only what HTML forbids is shown by number."""
    kept = "".join(f"[U+{ord(one):04X}]" if _forbidden(one) else one for one in text)
    return markupsafe.escape(kept)


def hidden_lines(text: str) -> list[int]:
    """Return the lines, from 1, that contain characters which reorder or hide text."""
    return [number for number, line in enumerate(text.split("\n"), 1) if visible(line) != line]


def cell(value: Any) -> str:
    """Return a cell of a CSV file that no spreadsheet takes for a formula."""
    text = "" if value is None else visible(str(value))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"'{text}" if text.startswith(_FORMULA) and not number else text


def _forbidden(letter: str) -> bool:
    """Return whether HTML has no such character."""
    controls = letter not in "\n\t" and unicodedata.category(letter) in ("Cc", "Cs")
    return controls or (ord(letter) & 0xFFFE) == 0xFFFE or 0xFDD0 <= ord(letter) <= 0xFDEF


def _shown(letter: str) -> str:
    if letter in "\n\t" or unicodedata.category(letter) not in _HIDDEN:
        return letter
    return f"[U+{ord(letter):04X}]"
