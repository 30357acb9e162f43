"""What is guessed where a name is not known, and where nothing is."""

from __future__ import annotations

import pytest

from oarlock.spec import nearness

POOLS = ("default", "product", "research", "speech", "vision")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("spech", "speech"),
        ("speeech", "speech"),
        ("sepech", "speech"),
        ("SPEECH", "speech"),
        ("reserch", "research"),
        ("visions", "vision"),
        ("nosuch", None),
        ("search", "research"),
        ("production", "product"),
        ("x", None),
        ("", None),
        ("training", None),
        ("vision" * 100_000, None),
    ],
)
def test_only_what_is_close_is_guessed(typed: str, meant: str | None) -> None:
    assert nearness.nearest(typed, POOLS) == meant


def test_capitals_of_the_known_name_stay() -> None:
    assert nearness.nearest("processing", ["QUEUED", "PROCESSING"]) == "PROCESSING"
    assert nearness.nearest("a", []) is None
