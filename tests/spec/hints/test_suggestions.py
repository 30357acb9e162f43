"""Suggestions for unknown names, and names without any."""

from __future__ import annotations

import pytest

from oarlock.spec.hints import suggestions

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
def test_only_close_names_are_suggested(typed: str, meant: str | None) -> None:
    assert suggestions.nearest(typed, POOLS) == meant


def test_a_short_name_with_two_letters_swapped_and_the_beginning_of_a_long_one_are_guessed() -> None:
    jobs = ["lp", "fine-tuning-of-the-large-one", "fine-tuning"]
    assert suggestions.nearest("pl", jobs) == "lp"
    assert suggestions.nearest("fine", jobs) == "fine-tuning", "the shortest, where several begin so"
    assert suggestions.nearest("fi", jobs) is None
    assert suggestions.nearest("ls", jobs) is None


def test_capitals_of_the_known_name_stay() -> None:
    assert suggestions.nearest("processing", ["QUEUED", "PROCESSING"]) == "PROCESSING"
    assert suggestions.nearest("a", []) is None
