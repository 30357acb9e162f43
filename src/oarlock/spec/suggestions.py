"""Which known name somebody may have meant who typed another. A guess is made only where the two are close: a wrong one
misleads more than none.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CLOSE = 0.65
"""The least share of letters in common, in their order, that a slip of the fingers leaves; the whole is 1."""
_LOOKED_AT = 200


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The closest of `known`, where one is close enough. Capitals do not count."""
    names = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name[:_LOOKED_AT].lower(), list(names), n=1, cutoff=CLOSE)
    return names[found[0]] if found else None
