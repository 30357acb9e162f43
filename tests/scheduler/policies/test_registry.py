"""The policies by their names."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from oarlock.scheduler import planning
from oarlock.scheduler.policies import registry
from oarlock.spec import errors, holdings, plans, roles
from oarlock.spec.cluster import nodes


def test_every_policy_is_found_by_its_own_name() -> None:
    assert {name: policy.name for name, policy in registry.POLICIES.items()} == {
        name: name for name in registry.POLICIES
    }


@pytest.mark.parametrize(
    ("wrong", "hint"), [("prioritty", "'priority'"), ("lsa", "'las'"), ("x", "There are fair, fifo, gandiva")]
)
def test_a_wrong_name_is_answered_with_the_nearest(wrong: str, hint: str) -> None:
    with pytest.raises(errors.InvalidInput, match=f"there is no policy '{wrong}'") as refused:
        registry.named(wrong)
    assert hint in refused.value.hint


def stopped(policy: str, priority: int) -> list[str]:
    """Return the decision on a gang that has run for long on the only GPU, when one of that priority comes."""
    one = holdings.Resources(gpus=1)
    node = nodes.Node(name="n1", capacity=one, devices=(nodes.Device(index=0, type="gpu"),))
    ask = plans.Ask(role=roles.RoleName.WORKER, count=1, min=1, max=1, amount=one)
    long = plans.Gang(job="long", name="long", pool="default", asks=(ask,), priority=50, submitted_at=0.0)
    comes = msgspec.structs.replace(long, job="new", name="new", priority=priority, submitted_at=999.0)
    held = holdings.Holding(job="long", attempt=1, role="worker", index=0, node="n1", amount=one, devices=(0,))
    runs = plans.Running(gang=long, holdings=(held,), started_at=0.0)
    snapshot = plans.Snapshot(nodes=(node,), running=(runs,), waiting=(comes,), rules=plans.Rules(policy=policy))
    return [change.job for change in planning.plan(snapshot, 1000.0).preemptions]


@pytest.mark.parametrize("name", registry.POLICIES)
def test_the_page_says_under_which_policies_priority_counts(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "policies.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |") and line.count("|") == 5]
    assert ("of lower priority" in row) == (stopped(name, 51) != stopped(name, 50)), row


@pytest.mark.parametrize("name", registry.POLICIES)
def test_every_policy_and_every_parameter_is_documented(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "policies.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in page
    for parameter in getattr(registry.POLICIES[name], "PARAMETERS"):  # noqa: B009 - each has them; the port needs none
        assert f"`{parameter}`" in page, parameter
