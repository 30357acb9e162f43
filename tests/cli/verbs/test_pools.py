"""`oarlock pools` and `oarlock pool`: the tree as it is drawn, and the commands that change it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli import typed
from tests.client import live
from tests.documentation import blocks

from oarlock.cli import main
from oarlock.cli.output import pooltree, terminal
from oarlock.spec import bodies, events, holdings, jobs
from oarlock.spec.cluster import nodes, pools

DOCS = Path(__file__).parents[3] / "docs" / "pools.md"


class Typed:
    """A command line in this process: its exit code, and its output on both streams."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, line: str, code: int = 0) -> tuple[str, str]:
        found = main.main(line.split())
        said = self._capsys.readouterr()
        assert found == code, said.err
        return said.out, said.err


@pytest.fixture
def type_(capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(capsys)


def hold(server: live.LiveServer, job: jobs.Job, gpus: int, cpus: float) -> None:
    """Hold resources on one node, as a scheduler would."""
    claim = holdings.Holding(
        job=job.id,
        attempt=1,
        role="worker",
        index=0,
        node="big",
        amount=holdings.Resources(round(cpus * 1000), 0, gpus),
    )
    server.do(server.rig.happen(job.id, events.Admitted(attempt=1, holdings=(claim,))))
    server.do(server.rig.store.write(lambda tx: tx.hold([claim])))


def machine(server: live.LiveServer, gpus: int, cpus: int, memory_bytes: int = 0) -> None:
    node = nodes.Node(
        name="big",
        capacity=holdings.Resources(cpus * 1000, memory_bytes, gpus),
        devices=tuple(nodes.Device(index=index, type="h100") for index in range(gpus)),
    )
    server.do(server.rig.store.write(lambda tx: (tx.remove_node("here"), tx.put_node(node))))


def typed_in(page: str) -> list[str]:
    """The `oarlock` commands of a page's shell blocks, without the name and the remarks behind them."""
    lines = [line for block in blocks.of(page) if block.language == "sh" for line in block.text.splitlines()]
    return [line.partition("  #")[0].rstrip().removeprefix("oarlock ") for line in lines]


def test_the_example_of_the_documentation_is_drawn_like_this(type_: Typed, server: live.LiveServer) -> None:
    """Its three nodes of 8 GPUs and 2 CPUs are one here: pools know nothing of nodes."""
    machine(server, 24, 6, round(70.64 * 2**30))
    _, _, example = DOCS.read_text(encoding="utf-8").partition("## Two teams on one cluster")
    example, _, _ = example.partition("## Changing")
    commands = [line for line in typed_in(example) if line.startswith("pool set")]
    assert len(commands) == 4
    for line in commands:
        type_(line)
    for name, gpus in (("large", 8), ("middle", 6)):
        made = server.submit(name=name, pool="vision", roles={"worker": {"gpus": gpus, "cpus": 0.1}})
        hold(server, made, gpus, 0.1)
    server.submit(name="late", pool="vision", roles={"worker": {"gpus": 4, "cpus": 0.1}})
    shown, _ = type_("pools")
    (drawn,) = [block.text for block in blocks.of(example) if block.language == "text"]
    assert [line.rstrip() for line in shown.splitlines()] == drawn.splitlines()


class TestSet:
    def stored(self, type_: Typed, name: str) -> dict[str, Any]:
        shown, _ = type_("pools --json")
        return next(item["pool"] for item in json.loads(shown)["items"] if item["pool"]["name"] == name)

    def test_one_command_makes_or_changes_a_pool(self, type_: Typed, server: live.LiveServer) -> None:
        out, err = type_("pool set research --reserve gpus=1 --limit gpus=2,memory=1.5Gi --share 2 --policy las")
        assert out == (
            "research: reserves gpus=1, limited to gpus=2 memory=1.5Gi, share gpus=2 cpus=2 memory=2, policy las\n"
        )
        assert err == ""
        out, _ = type_("pool set research --reserve cpus=500m --limit gpus=none --share gpus=3 --static gpus,cpus")
        assert out == (
            "research: reserves gpus=1 cpus=0.5, limited to memory=1.5Gi, share gpus=3 cpus=2 memory=2, "
            "static gpus cpus, policy las\n"
        )
        type_("pool set vision --parent research --share 1 --share gpus=4")
        assert self.stored(type_, "vision")["share"] == {"gpus": 4.0, "cpus": 1.0, "memory": 1.0}
        assert self.stored(type_, "vision")["parent"] == "research"
        type_("pool set vision --parent none --share none")
        assert (self.stored(type_, "vision")["parent"], self.stored(type_, "vision")["share"]) == (None, {})
        out, _ = type_("pool set research --reserve none --limit none --share none --static none --policy none")
        assert out == "research: no reservation, no limit\n"
        _, err = type_("pool rm research")
        assert err == "Removed research.\n"

    def test_programs_get_the_pool(self, type_: Typed, server: live.LiveServer) -> None:
        out, _ = type_("pool set a --reserve gpus=1 --json")
        assert msgspec.json.decode(out, type=pools.Pool) == pools.Pool(name="a", reserve={"gpus": 1.0}, version=1)
        out, _ = type_("pool rm a --json")
        assert json.loads(out) == {"pool": "a"}

    def test_more_than_there_is_is_taken_and_said(self, type_: Typed, server: live.LiveServer) -> None:
        _, err = type_("pool set a --reserve gpus=3")
        said = "The pools reserve 3 GPUs together, and the nodes that are ready have 2 GPUs"
        assert err.startswith(said)
        assert type_("pools")[1].startswith(said)

    @pytest.mark.parametrize(
        ("line", "code", "said"),
        [
            ("pool set b --parent a --reserve gpus=2", 2, "`b` would reserve 2 GPUs, and `a` above it reserves 1 GPU."),
            ("pool set b --parent a --reserve gpus=2", 2, "oarlock pool set a --reserve gpus=2"),
            ("pool set b --parent aa", 2, "Did you mean `a`?"),
            ("pool set b --reserve gpus", 2, "Write --reserve gpus=8."),
            ("pool set b --reserve gpus=", 2, "Write --reserve gpus=8."),
            ("pool set b --limit none,gpus=2", 2, "Write --limit gpus=8."),
            ("pool set b --share some", 2, "'some' is not an amount."),
            ("pool set b --static gpu", 2, "Did you mean `gpus`?"),
            ("pool set b --policy prority", 2, "Did you mean 'priority'?"),
            ("pool set B", 2, "Use lower-case letters"),
            ("pool set", 2, "Missing argument 'NAME'"),
            ("pool rm default", 1, "oarlock pool set default --reserve none"),
            ("pool rm busy", 1, "There is 1 job in `busy`: digits."),
            ("pool rm busy", 1, "oarlock cancel digits"),
            ("pool rm bsy", 1, "Did you mean `busy`?"),
            ("pool set b --parent busy", 1, "There is 1 job in `busy` itself (digits), and jobs live in leaves."),
            ("run --pool bsy --no-snapshot --detach -- true", 2, "Did you mean `busy`?"),
        ],
    )
    def test_a_refusal_names_the_next_step(
        self, type_: Typed, server: live.LiveServer, line: str, code: int, said: str
    ) -> None:
        type_("pool set a --reserve gpus=1 --limit gpus=1")
        type_("pool set busy")
        server.submit(name="digits", pool="busy")
        before = type_("pools --json")
        out, err = type_(line, code=code)
        assert out == ""
        assert said in err
        assert type_("pools --json") == before

    def test_users_who_are_no_administrators_may_look(
        self, type_: Typed, server: live.LiveServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OARLOCK_SERVER", server.url)
        monkeypatch.setenv("OARLOCK_TOKEN", server.rig.tokens["ann"])
        _, err = type_("pool set mine --reserve gpus=2", code=1)
        assert "This needs the right `admin`; ann has `user`." in err
        _, err = type_("pool rm default", code=1)
        assert "This needs the right `admin`" in err
        assert "default" in type_("pools")[0]


def big() -> bodies.PoolList:
    """Ten levels, long names, great numbers."""
    found = []
    for level in range(10):
        pool = pools.Pool(
            name=f"{level}-" + "x" * 60,
            parent=f"{level - 1}-" + "x" * 60 if level else None,
            reserve={"gpus": 99_999.5, "memory": float(1 << 59)},
            limit={"cpus": 1_280_000.0},
            share={"gpus": 2.0},
            static=("gpus", "memory"),
            policy="priority",
        )
        entitled = {"gpus": 80_000.25, "cpus": 1e6 / 3, "memory": 1.1e18}
        held = holdings.Resources(12_345_678, 1 << 55, 70_000)
        found.append(
            bodies.PoolState(
                pool=pool, held=held, entitled=entitled, demand={}, reserved={}, running=12_345, waiting=100_000
            )
        )
    return bodies.PoolList(items=tuple(found), capacity={"gpus": 80_000.0, "cpus": 1_280_000.0, "memory": 1e18})


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 300])
@pytest.mark.parametrize("unicode", [True, False])
def test_it_fits(columns: int, unicode: bool) -> None:
    shown = list(pooltree.lines(big(), columns=columns, unicode=unicode))
    assert max(terminal.cells(line) for line in shown) <= columns
    assert len(shown) == 3 + 10 * 4
    if columns >= 80:
        assert all("70000" in line for line in shown if line.split()[:1] == ["gpus"])
    if not unicode:
        assert all(line.isascii() for line in shown)


def test_on_a_terminal_it_has_colours_and_fits(server: live.LiveServer) -> None:
    server.submit(name="one", roles={"worker": {"gpus": 1}})
    with typed.terminal("pools") as shown:
        assert shown.ended() == 0
        assert "\x1b[32m" in shown.text
        rows = typed.screen(shown.raw.decode())
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in rows]
    assert max(map(len, plain)) <= 80
    assert any(row.startswith("default") and row.endswith("0 running, 1 waiting") for row in plain)
    with typed.terminal("pools", env={"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}) as shown:
        assert shown.ended() == 0
        assert shown.text.isascii()
        assert "\x1b[3" not in shown.text


def test_a_resource_without_capacity_and_bound_is_not_drawn() -> None:
    view = bodies.PoolState(
        pool=pools.Pool(name="default"),
        held=holdings.Resources(),
        entitled={"gpus": 0.0, "cpus": 4.0, "memory": 0.0},
        demand={},
        reserved={},
        running=0,
        waiting=0,
    )
    tree = bodies.PoolList(items=(view,), capacity={"gpus": 0.0, "cpus": 4.0, "memory": 0.0})
    shown = "\n".join(pooltree.lines(tree))
    assert "cpus" in shown
    assert "gpus" not in shown
    wanting = bodies.PoolList(items=(msgspec.structs.replace(view, demand={"gpus": 2.0}),), capacity=tree.capacity)
    assert "gpus" in "\n".join(pooltree.lines(wanting)), "somebody waits for what is not there"


def test_a_dry_run_tells_the_effects_and_changes_nothing(server: live.LiveServer, type_: Typed) -> None:
    machine(server, 4, 8)
    server.submit(name="waits", roles={"worker": {"gpus": 2}})
    out, _ = type_("pool set research --reserve gpus=3 --dry-run")
    assert "research: reserves gpus=3" in out
    assert "research would be entitled to " in out
    assert "at once" in out
    assert "research" not in type_("pools")[0]
    told = json.loads(type_("pool set research --share 2 --dry-run --json")[0])
    assert told["pool"]["share"]["gpus"] == 2.0
    type_("pool set research --parent nowhere --dry-run", code=2)
