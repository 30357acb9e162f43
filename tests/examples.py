"""The number of examples of a property test."""

from __future__ import annotations

import hypothesis

SHARE = 4


def at_most(count: int) -> int:
    """Return `count` where `make test-long` runs (profile `full`), and a quarter of it in `make test`."""
    return count if hypothesis.settings.get_current_profile_name() != "suite" else max(1, count // SHARE)
