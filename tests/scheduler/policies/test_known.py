"""The policies by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from oarlock.scheduler.policies import known
from oarlock.spec import errors


def test_every_policy_is_found_by_its_own_name() -> None:
    assert {name: policy.name for name, policy in known.POLICIES.items()} == {name: name for name in known.POLICIES}


@pytest.mark.parametrize(
    ("wrong", "hint"), [("prioritty", "'priority'"), ("lsa", "'las'"), ("x", "There are fair, fifo, gandiva")]
)
def test_a_wrong_name_is_answered_with_the_nearest(wrong: str, hint: str) -> None:
    with pytest.raises(errors.InvalidInput, match=f"there is no policy '{wrong}'") as refused:
        known.named(wrong)
    assert hint in refused.value.hint


@pytest.mark.parametrize("name", known.POLICIES)
def test_every_policy_and_every_parameter_is_documented(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "policies.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in page
    for parameter in getattr(known.POLICIES[name], "PARAMETERS"):  # noqa: B009 - each has them; the port needs none
        assert f"`{parameter}`" in page, parameter
