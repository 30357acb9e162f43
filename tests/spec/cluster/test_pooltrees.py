"""Which trees of pools can be meant: what is refused, with its numbers and the next step, and what every tree keeps."""

from __future__ import annotations

import re

import hypothesis
import pytest
from hypothesis import strategies as st
from tests import examples

from oarlock.spec import errors
from oarlock.spec.cluster import poolchanges, pools, pooltrees
from oarlock.spec.input import validation

TREE = [
    pools.Pool(name="research", reserve={"gpus": 16.0, "memory": float(64 << 30)}, limit={"gpus": 24.0}),
    pools.Pool(name="vision", parent="research", reserve={"gpus": 8.0}, limit={"gpus": 16.0}),
    pools.Pool(name="speech", parent="research", reserve={"gpus": 4.0}),
    pools.Pool(name="product", limit={"cpus": 4.0}),
]
JOBS = {"product": ["a", "b", "c", "d", "e"], "speech": ["one"]}


def jobs(pool: str) -> list[str]:
    return JOBS.get(pool, [])


def apply(tree: list[pools.Pool], name: str, **fields: object) -> list[pools.Pool]:
    """The tree after `oarlock pool set NAME ...`; raises what that is refused with."""
    before = next((pool for pool in tree if pool.name == name), pools.Pool(name=name))
    after = poolchanges.changed(before, validation.convert(fields, poolchanges.Change))
    pooltrees.check(after, tree, jobs)
    return [*(pool for pool in tree if pool.name != name), after]


REFUSED = [
    # name, fields, path, the sentence, the next step
    (
        "product",
        {"reserve": {"cpus": 8}},
        "reserve.cpus",
        "`product` would reserve 8 CPUs and be limited to 4 CPUs.",
        "Reserve 4 CPUs at most, or raise the limit: oarlock pool set product --limit cpus=8",
    ),
    (
        "vision",
        {"reserve": {"gpus": 13}},
        "reserve.gpus",
        "`vision` would reserve 13 GPUs beside speech 4 GPUs, and `research` above it reserves 16 GPUs.",
        "Reserve 12 GPUs here, or more there first: oarlock pool set research --reserve gpus=17",
    ),
    (
        "vision",
        {"reserve": {"cpus": "500m"}},
        "reserve.cpus",
        "`vision` would reserve 0.5 CPUs, and `research` above it reserves none.",
        "Reserve none here, or more there first: oarlock pool set research --reserve cpus=0.5",
    ),
    (
        "research",
        {"reserve": {"gpus": 10}},
        "reserve.gpus",
        "`research` would reserve 10 GPUs, and the pools below it reserve 12 GPUs: vision 8 GPUs, speech 4 GPUs.",
        "Reserve 12 GPUs here at least, or less there first: oarlock pool set vision --reserve gpus=6",
    ),
    (
        "research",
        {"limit": {"gpus": "12"}, "reserve": {"gpus": 12}},
        "limit.gpus",
        "`research` would be limited to 12 GPUs, and `vision` below it to 16 GPUs.",
        "Limit it to 16 GPUs at least, or lower that one first: oarlock pool set vision --limit gpus=12",
    ),
    (
        "speech",
        {"limit": {"gpus": 100}},
        "limit.gpus",
        "`speech` would be limited to 100 GPUs, and `research` above it to 24 GPUs.",
        "Limit it to 24 GPUs at most, or raise that one first: oarlock pool set research --limit gpus=100",
    ),
    (
        "new",
        {"parent": "vision", "limit": {"gpus": 17}},
        "limit.gpus",
        "`new` would be limited to 17 GPUs, and `vision` above it to 16 GPUs.",
        "Limit it to 16 GPUs at most, or raise that one first: oarlock pool set vision --limit gpus=17",
    ),
    (
        "speech",
        {"reserve": {"memory": "80Gi"}},
        "reserve.memory",
        "`speech` would reserve 80 GiB, and `research` above it reserves 64 GiB.",
        "Reserve 64 GiB here, or more there first: oarlock pool set research --reserve memory=80Gi",
    ),
    (
        "new",
        {"parent": "reserch"},
        "parent",
        "There is no pool `reserch`.",
        "Did you mean `research`? Or make it first: oarlock pool set reserch",
    ),
    (
        "research",
        {"parent": "vision"},
        "parent",
        "`research` cannot lie below `vision`: that would be `vision` below `research`, in a circle.",
        "Put it below none, or move the other one first: oarlock pool set NAME --parent none",
    ),
    (
        "vision",
        {"parent": "vision"},
        "parent",
        "`vision` cannot lie below itself.",
        "Put it below another pool, or below none.",
    ),
    (
        "new",
        {"parent": "a/b"},
        "parent",
        "'a/b' is not a valid name",
        "Use lower-case letters, digits and dashes, at most 63, no dash at the ends.",
    ),
    (
        "new",
        {"parent": "default"},
        "parent",
        "`default` is the pool of jobs that name none: it stays a leaf.",
        "Put it below another pool, or below none.",
    ),
    (
        "new",
        {"parent": "product"},
        "parent",
        "There are 5 jobs in `product` itself (a, b, c and 2 more), and jobs live in leaves.",
        "Wait for their end, cancel them, or put the new pool beside it.",
    ),
    (
        "new",
        {"parent": "speech"},
        "parent",
        "There is 1 job in `speech` itself (one), and jobs live in leaves.",
        "Wait for their end, cancel them, or put the new pool beside it.",
    ),
    ("none", {}, "name", "`none` is not a valid name of a pool.", "Choose another one."),
    ("new", {"reserve": {"gpu": 8}}, "reserve.gpu", "There is no resource `gpu`.", "Did you mean `gpus`?"),
    (
        "new",
        {"limit": {"disks": None}},
        "limit.disks",
        "There is no resource `disks`.",
        "There are gpus, cpus, memory.",
    ),
    ("new", {"static": ["gpu"]}, "static", "There is no resource `gpu`.", "Did you mean `gpus`?"),
    ("new", {"share": "much"}, "share.gpus", "'much' is not an amount.", "Write a number: 8, or 0.5."),
    ("new", {"share": -1}, "share.gpus", "-1 is out of range.", "It must be between 0 and 1e+09."),
    ("new", {"reserve": {"gpus": "nan"}}, "reserve.gpus", "'nan' is not an amount.", "Write a number: 8, or 0.5."),
    (
        "new",
        {"reserve": {"gpus": float("nan")}},
        "reserve.gpus",
        "nan is out of range.",
        "It must be between 0 and 1e+09.",
    ),
    (
        "new",
        {"limit": {"memory": float("inf")}},
        "limit.memory",
        "inf is not an amount.",
        "Write a number of bytes, or 64Gi.",
    ),
    ("new", {"reserves": {}}, "reserves", "unknown field 'reserves'", "Did you mean `reserve`?"),
]


@pytest.mark.parametrize(("name", "fields", "path", "message", "hint"), REFUSED)
def test_a_refusal_has_its_numbers_and_the_next_step(
    name: str, fields: dict[str, object], path: str, message: str, hint: str
) -> None:
    with pytest.raises((errors.InvalidInput, errors.Conflict)) as refused:
        apply(TREE, name, **fields)
    assert (refused.value.path, refused.value.message, refused.value.hint) == (path, message, hint)


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a" * 64, "a/b", "ä", "\0"])
def test_a_pool_has_a_name_as_a_job_has(name: str) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        apply(TREE, name)
    assert refused.value.path == "name"


@pytest.mark.parametrize("case", [case for case in REFUSED if "oarlock pool set" in case[4] and "NAME" not in case[4]])
def test_the_next_step_that_is_named_lets_it_pass(case: tuple[str, dict[str, object], str, str, str]) -> None:
    name, fields, _, _, hint = case
    typed = re.search(r"oarlock pool set (\S+)(?: --(\w+) (\w+)=(\S+))?$", hint)
    assert typed is not None
    step = {typed[2]: {typed[3]: typed[4]}} if typed[2] else {}
    if typed[1] == name:
        apply(TREE, name, **{**step, **fields})
        return
    tree = apply(TREE, typed[1], **step)
    apply(tree, name, **fields)


def test_a_field_that_is_not_given_stays() -> None:
    tree = apply([], "a", reserve={"gpus": 8, "memory": "1.5Gi"}, limit={"gpus": 16}, share=2, static=["gpus"])
    tree = apply(tree, "a", reserve={"gpus": "4", "cpus": 2}, policy="las")
    (found,) = tree
    assert found.reserve == {"gpus": 4.0, "cpus": 2.0, "memory": 1.5 * (1 << 30)}
    assert (found.limit, found.share) == ({"gpus": 16.0}, {"gpus": 2.0, "cpus": 2.0, "memory": 2.0})
    assert (found.static, found.policy) == (("gpus",), "las")
    tree = apply(tree, "a", reserve={"memory": None}, limit=None, share={"gpus": None}, static=[], policy=None)
    (found,) = tree
    assert (found.reserve, found.limit) == ({"gpus": 4.0, "cpus": 2.0}, {})
    assert (found.share, found.static, found.policy) == ({"cpus": 2.0, "memory": 2.0}, (), None)
    assert apply(tree, "a") == tree


def test_a_pool_moves_with_all_that_lies_below_it() -> None:
    tree = apply(TREE, "lab", reserve={"gpus": 20, "memory": "64Gi"}, limit={"gpus": 30})
    moved = apply(tree, "research", parent="lab")
    assert pooltrees.line("vision", {pool.name: pool for pool in moved}) == ["vision", "research", "lab"]
    narrow = apply(TREE, "lab", reserve={"gpus": 15}, limit={"gpus": 15})
    loose = apply(narrow, "research", limit=None)
    with pytest.raises(errors.InvalidInput, match="`lab` would be limited to 15 GPUs, and `vision` below it to 16"):
        apply(loose, "research", parent="lab", reserve={"gpus": 12, "memory": None})


def test_a_tree_has_so_many_levels_and_pools() -> None:
    tree: list[pools.Pool] = []
    for level in range(pooltrees.MAX_DEPTH):
        tree = apply(tree, f"l{level}", parent=f"l{level - 1}" if level else None)
    with pytest.raises(errors.InvalidInput, match="a tree of 11 levels"):
        apply(tree, "l10", parent="l9")
    apply(tree, "top")
    with pytest.raises(errors.InvalidInput, match="a tree of 11 levels"):
        apply([*tree, pools.Pool(name="top")], "l0", parent="top")
    many = [pools.Pool(name=f"p{number}") for number in range(pooltrees.MAX_POOLS)]
    with pytest.raises(errors.InvalidInput, match="There are 1000 pools"):
        apply(many, "one-more")
    apply(many, "p7", share=2)


class TestRemoval:
    def refusal(self, name: str) -> tuple[type[errors.OarlockError], str, str]:
        with pytest.raises(errors.OarlockError) as refused:
            pooltrees.check_removal(name, TREE, jobs)
        return type(refused.value), refused.value.message, refused.value.hint

    def test_a_leaf_without_jobs_vanishes(self) -> None:
        pooltrees.check_removal("vision", TREE, jobs)

    def test_a_parent_does_not(self) -> None:
        assert self.refusal("research") == (
            errors.Conflict,
            "2 pools lie below `research`: speech, vision.",
            "Remove those first: oarlock pool rm speech",
        )

    def test_a_pool_with_jobs_does_not(self) -> None:
        assert self.refusal("product") == (
            errors.Conflict,
            "There are 5 jobs in `product`: a, b, c and 2 more.",
            "Wait for their end, or cancel them: oarlock cancel a",
        )

    def test_nor_does_the_default_pool(self) -> None:
        kind, _, hint = self.refusal("default")
        assert kind is errors.Conflict
        assert "oarlock pool set default --reserve none" in hint

    def test_a_missing_pool_is_not_found(self) -> None:
        assert self.refusal("vison") == (errors.NotFound, "There is no pool `vison`.", "Did you mean `vision`?")


class TestLeaves:
    def refusal(self, name: str, tree: list[pools.Pool] = TREE) -> tuple[str, str, str]:
        with pytest.raises(errors.InvalidInput) as refused:
            pooltrees.check_leaf(name, tree)
        return refused.value.path, refused.value.message, refused.value.hint

    def test_jobs_go_to_leaves(self) -> None:
        for name in ("vision", "speech", "product", "default"):
            pooltrees.check_leaf(name, TREE)
        pooltrees.check_leaf("default", [])

    def test_a_parent_names_its_leaves(self) -> None:
        assert self.refusal("research") == (
            "pool",
            "`research` is divided into other pools, and jobs go to those.",
            "Below it there are: speech, vision.",
        )

    def test_a_pool_that_there_is_not_names_the_nearest_one(self) -> None:
        assert self.refusal("reserch") == ("pool", "There is no pool `reserch`.", "Did you mean `research`?")
        assert self.refusal("zzz")[2] == "There are: default, product, research, speech, vision."
        assert self.refusal("zzz", [])[2] == "There is: default."


CHANGES = st.tuples(
    st.sampled_from(["a", "b", "c", "d", "e", "default"]),
    st.fixed_dictionaries(
        {},
        optional={
            "parent": st.sampled_from([None, "a", "b", "c", "d", "default", "nowhere"]),
            "reserve": st.sampled_from([{"gpus": value} for value in (0, 1, 2, 5, 8, None)]),
            "limit": st.sampled_from([{"gpus": value} for value in (0, 2, 5, 8, 20, None)]),
        },
    ),
)


@hypothesis.settings(max_examples=examples.at_most(300), deadline=None)
@hypothesis.given(st.lists(CHANGES, max_size=25), st.dictionaries(st.sampled_from("abcde"), st.just(["j"])))
def test_whatever_was_accepted_adds_up(
    changes: list[tuple[str, dict[str, object]]], busy: dict[str, list[str]]
) -> None:
    """Said anew, over the whole tree, after every change; `oarlock pool rm` of whatever can go, too."""
    tree: dict[str, pools.Pool] = {}
    for name, fields in changes:
        before = tree.get(name, pools.Pool(name=name))
        after = poolchanges.changed(before, validation.convert(fields, poolchanges.Change))
        try:
            if fields:
                pooltrees.check(after, tree.values(), lambda pool: busy.get(pool, []))
                tree[name] = after
            else:
                pooltrees.check_removal(name, tree.values(), lambda pool: busy.get(pool, []))
                del tree[name]
        except errors.OarlockError:
            continue
        for one in tree.values():
            children = [child for child in tree.values() if child.parent == one.name]
            assert one.reserve.get("gpus", 0) <= one.limit.get("gpus", 99)
            assert not (children and busy.get(one.name)), "jobs live in leaves"
            assert not (children and one.name == "default")
            assert sum(child.reserve.get("gpus", 0) for child in children) <= one.reserve.get("gpus", 0) or not children
            seen, above = {one.name}, one.parent
            while above is not None:
                assert above not in seen, "a circle"
                assert one.limit.get("gpus", 0) <= tree[above].limit.get("gpus", 99)
                seen.add(above)
                above = tree[above].parent
