"""The planted bugs that `make mutants` counts as harmless without an entry of their own."""

from __future__ import annotations

import pytest
from tests import mutants


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        ("zip(a, b, strict=True)", "zip(a, b, )", True),
        ("zip(a, b, strict=True)", "zip(a, b, strict=False)", True),
        ("zip(a, b, strict=True)", "zip(a, strict=True)", False),
        ("decode(text, strict=True)", "decode(text, strict=False)", False),
        ('exec_driver_sql("SAVEPOINT probe")', 'exec_driver_sql("savepoint probe")', True),
        ('exec_driver_sql("SAVEPOINT probe")', 'exec_driver_sql("XXSAVEPOINT probeXX")', False),
        ("exec_driver_sql(\"SELECT 1 WHERE kind = 'a'\")", "exec_driver_sql(\"SELECT 1 WHERE KIND = 'A'\")", False),
        ('say("No")', 'say("NO")', False),
        ("return a", "return a", False),
    ],
)
def test_a_change_that_means_the_same(old: str, new: str, alike: bool) -> None:
    assert mutants.alike((f"- {old}", f"+ {new}")) is alike
