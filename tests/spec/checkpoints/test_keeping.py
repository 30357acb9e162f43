"""Which old checkpoints may be deleted, and how few of them have to be read to know it."""

from __future__ import annotations

import pytest

from oarlock.spec.checkpoints import keeping


@pytest.mark.parametrize(
    ("steps", "keep", "bad", "known", "asked", "spare"),
    [
        ("321", 3, "", "", "", ""),
        ("4321", 2, "", "", "43", "12"),
        ("4321", 2, "", "43", "43", "12"),
        ("54321", 3, "", "43", "43", "12"),
        ("4321", 2, "4", "", "43", "12"),
        ("4321", 2, "4", "3", "343", "12"),
        ("4321", 2, "43", "", "432", "1"),
        ("4321", 2, "43", "43", "43", "12"),  # two that were read before and look as they did are believed
        ("4321", 2, "43", "4", "4342", "1"),
        ("321", 1, "", "", "3", "12"),
        ("321", 1, "", "3", "33", "12"),
        ("321", 0, "", "", "3", "12"),
        ("321", 2, "321", "", "321", ""),
        ("", 2, "", "", "", ""),
    ],
)
def test_the_checkpoints_that_may_be_deleted(
    steps: str, keep: int, bad: str, known: str, asked: str, spare: str
) -> None:
    """`bad` ones do not hold when they are read; `known` ones are believed to until then."""
    questions = []

    def holds(question: keeping.Question[str]) -> bool:
        questions.append(question.checkpoint)
        remembered = question.checkpoint in known and not question.fresh
        return remembered or question.checkpoint not in bad

    decided = keeping.settle(keeping.spare(steps, keep, known.__contains__), holds)
    assert ("".join(questions), "".join(decided)) == (asked, spare)
