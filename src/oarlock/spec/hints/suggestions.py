"""Suggestions for mistyped names. A guess is made only where the two are close: a wrong one misleads more than none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CLOSE = 0.65
"""The least share of letters in common, in their order, that a slip of the fingers leaves; the whole is 1."""
LEAST_BEGINNING = 3
"""The fewest letters by which a longer name is guessed from its beginning."""
_LOOKED_AT = 200


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the closest of `known`, where one is close enough. Capitals do not count."""
    names = {one.lower(): one for one in known}
    typed = name[:_LOOKED_AT].lower()
    found = difflib.get_close_matches(typed, list(names), n=1, cutoff=CLOSE)
    found = found or sorted((one for one in names if _begins(typed, one) or _swapped(typed, one)), key=len)
    return names[found[0]] if found else None


def _begins(typed: str, name: str) -> bool:
    """Return whether the rest of the name was left out."""
    return len(typed) >= LEAST_BEGINNING and name.startswith(typed)


def _swapped(typed: str, name: str) -> bool:
    """Return whether two neighbours stand in the wrong order: in a short name that is half of it."""
    if len(typed) != len(name):
        return False
    wrong = [place for place, (one, other) in enumerate(zip(typed, name, strict=True)) if one != other]
    return len(wrong) == 2 and wrong[1] == wrong[0] + 1 and sorted(typed) == sorted(name)
