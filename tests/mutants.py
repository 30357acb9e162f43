"""Mutation testing: small bugs are planted one by one, and a test of the room must fail for each.

`make mutants` runs all rooms, `make mutants ARGS="lifecycle"` one. mutmut plants the bugs in a copy of the tree below
`.mutants/ROOM`, so an interrupted run goes on where it stopped. A large room has a share: so many of its bugs, chosen
by a fixed seed, are planted (`--share 1` plants all). A bug that no test notices is a survivor: it gets a test, or an
entry in `tests/mutants.toml` that says why it changes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
TREE = HERE.parent
WORK = TREE / ".mutants"

KILLED = frozenset({1, 3, 36, 24, -24, 152, 255, -9, -11, 37})
"""Exit codes of a run in which the planted bug was noticed: a failed test, a crash, a loop that had to be ended."""

LEFT_OUT = 34
"""The exit code under which mutmut passes a bug over."""

GENERATE = """
from mutmut import __main__ as mutmut
mutmut.set_mutant_under_test("mutant_generation")
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.setup_source_paths()
mutmut.store_lines_covered_by_tests()
mutmut.create_mutants(1)
"""
"""Writes down all bugs of a room, as `mutmut run` does before it tries the first."""

COPIED = ("tests", "docs", "bench", "examples", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")


class Room(NamedTuple):
    """`files` get the bugs, `tests` must notice them; both are patterns or paths from the root of the tree.

    `share` is the part of the bugs that is planted. `left_out` are tests that start programs of their own: what was
    planted reaches no other process.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]
    share: float = 1.0
    left_out: tuple[str, ...] = ()


AGENTS = tuple(
    f"tests/agent/{test}"
    for test in (
        "protocol/test_logs.py::test_lines_that_the_server_has_lost_are_sent_again_though_none_is_new",
        "protocol/test_logs.py::test_bytes_arrive_once_and_in_order_across_outages",
        "protocol/test_logs.py::test_a_server_that_has_less_or_more_than_was_acknowledged_is_followed",
        "protocol/test_logs.py::test_a_full_spool_drops_the_oldest_and_says_how_much",
        "protocol/test_logs.py::test_a_program_that_truncates_its_own_output_goes_on_being_heard",
        "protocol/test_logs.py::test_a_million_lines_arrive",
        "protocol/test_logs.py::test_a_line_is_one_write_and_outlives_its_process",
        "protocol/test_logs.py::test_a_server_that_refuses_the_bytes_does_not_keep_the_agent_for_ever",
        "protocol/test_logs.py::test_secrets_are_blanked_in_every_form_and_across_batches",
        "test_verdicts.py::test_a_kill_for_want_of_memory_is_named",
        "test_verdicts.py::test_as_process_1_of_a_container_it_reaps_orphans",
        "test_verdicts.py::test_an_assignment_that_cannot_be_read_is_said",
        "transfers/test_unpacking.py::test_a_snapshot_that_is_not_right_starts_nothing",
    )
)
"""Tests that start whole agents."""

ROOMS = {
    "lifecycle": Room(
        ("src/oarlock/lifecycle/*.py",),
        ("tests/lifecycle/test_[!i]*.py", "tests/lifecycle/failures/test_*.py"),
    ),
    "store": Room(
        ("src/oarlock/store/rules.py", "src/oarlock/store/memory.py", "src/oarlock/store/sql/[cfrw]*.py"),
        ("tests/store/test_memory.py", "tests/store/test_sqlite.py", "tests/store/test_refusals.py"),
        left_out=("tests/store/test_sqlite.py::test_a_flush_that_fails_is_not_acknowledged",),
    ),
    "scheduler": Room(
        (
            "src/oarlock/scheduler/planning.py",
            "src/oarlock/scheduler/granting/*.py",
            "src/oarlock/scheduler/preemption/*.py",
            "src/oarlock/scheduler/pools/*.py",
            "src/oarlock/scheduler/placement/*.py",
        ),
        (
            "tests/scheduler/test_scenarios.py",
            "tests/scheduler/granting/test_*.py",
            "tests/scheduler/preemption/test_*.py",
            "tests/scheduler/pools/test_*.py",
            "tests/scheduler/placement/test_*.py",
        ),
        share=0.02,
    ),
    "agent": Room(
        (
            "src/oarlock/agent/exitrecord.py",
            "src/oarlock/agent/inside.py",
            "src/oarlock/agent/processes/[ckpt]*.py",
            "src/oarlock/agent/protocol/[bc]*.py",
            "src/oarlock/agent/protocol/s*.py",
            "src/oarlock/agent/transfers/unpacking.py",
        ),
        (
            "tests/agent/test_exit_*.py",
            "tests/agent/test_inside.py",
            "tests/agent/test_verdicts.py",
            "tests/agent/processes/test_[ckp]*.py",
            "tests/agent/protocol/test_*.py",
            "tests/agent/transfers/test_unpacking.py",
        ),
        share=0.1,
        left_out=AGENTS,
    ),
    "data": Room(
        ("src/oarlock/data/[!_]*.py",),
        ("tests/data/**/test_*.py",),
        share=0.03,
        left_out=("tests/data/test_durability.py", "tests/data/transfers/test_errands.py"),
    ),
}


class Mutant(NamedTuple):
    """One planted bug: the function it is in, the lines it takes away and brings, and its fate."""

    where: str
    change: tuple[str, ...]
    exit_code: int | None

    @property
    def killed(self) -> bool:
        return self.exit_code in KILLED


def prepare(name: str, room: Room) -> Path:
    """Return the folder in which mutmut works for `room`: links to the tree, and settings of its own."""
    folder = WORK / name
    folder.mkdir(parents=True, exist_ok=True)
    for entry in ("src", *COPIED):
        link = folder / entry
        if not link.is_symlink():
            link.symlink_to(TREE / entry)
    tests = sorted(str(path.relative_to(TREE)) for pattern in room.tests for path in TREE.glob(pattern))
    left_out = [word for test in room.left_out for word in ("--deselect", test)]
    settings = {
        "source_paths": ["src"],
        "only_mutate": list(room.files),
        "also_copy": list(COPIED),
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-p", "no:xdist", "-x", "-q", *left_out],
        "pytest_add_cli_args_test_selection": tests,
        "use_git_change_detection": False,
    }
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    (folder / "pyproject.toml").write_text(f"{(TREE / 'pyproject.toml').read_text()}\n[tool.mutmut]\n{table}")
    return folder


def choose(folder: Path, share: float, seed: int) -> None:
    """Leave out all bugs but a `share` of them, the same ones for the same seed. Earlier results stay."""
    subprocess.run([sys.executable, "-c", GENERATE], cwd=folder, check=True)
    for found in sorted((folder / "mutants/src").rglob("*.py.meta")):
        meta = json.loads(found.read_text())
        codes = meta["exit_code_by_key"]
        for name, code in codes.items():
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            if code in {None, LEFT_OUT}:
                codes[name] = None if int.from_bytes(digest[:8]) < share * 2**64 else LEFT_OUT
        found.write_text(json.dumps(meta, indent=4))


def plant(folder: Path, workers: int, only: list[str]) -> None:
    """Run mutmut in `folder`, for all functions or `only` those with a mutant that matches a pattern."""
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", "run", "--max-children", str(workers), *only],
        cwd=folder,
        env={**os.environ, "HYPOTHESIS_PROFILE": "full"},  # all examples of property tests (tests/examples.py)
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"mutmut ended with code {done.returncode} in {folder}: its last lines say why")


def mutants(folder: Path) -> Iterator[Mutant]:
    """Yield the fate of every bug that mutmut planted in `folder`."""
    from mutmut.mutation import diff_apply  # only the runs need it

    with contextlib.chdir(folder):
        for found in sorted(Path("mutants/src").rglob("*.py.meta")):
            source = found.relative_to("mutants").with_suffix("")
            for name, code in json.loads(found.read_text())["exit_code_by_key"].items():
                if code == LEFT_OUT:
                    continue
                change: tuple[str, ...] = ()
                if code not in KILLED:
                    diff = diff_apply.get_diff_for_mutant(name, path=source).split("\n")[3:]
                    change = tuple(f"{line[0]} {line[1:].strip()}" for line in diff if line[:1] in {"-", "+"})
                yield Mutant(name.rpartition("__mutmut_")[0].removeprefix("oarlock."), change, code)


def explained() -> dict[tuple[str, tuple[str, ...]], str]:
    """Return why survivors change nothing, by function and change."""
    known = tomllib.loads((HERE / "mutants.toml").read_text()).get("survivor", [])
    return {(entry["where"], tuple(entry["change"])): entry["why"] for entry in known}


def alike(change: tuple[str, ...]) -> bool:
    """Return whether a change means the same to the program, wherever it is planted.

    - `zip` without `strict=True`: this check of two lengths fails only after another mistake, and no code handles it.
    - SQL in another case: keywords and bare names mean the same. Text in quotes does not.
    """
    if len(change) != 2:
        return False
    old, new = (line[2:] for line in change)
    if "zip(" in old and "strict=True" in old:
        return new in {old.replace("strict=True", other) for other in ("", "strict=False", "strict=None")}
    sql = re.search(r'driver_sql\(f?"([^"]*)"', old)
    return sql is not None and not set(sql[1]) & {"'", "\\"} and old != new and old.upper() == new.upper()


def tell(name: str, found: list[Mutant]) -> int:
    """Print the score of a room and its unexplained survivors; return how many there are."""
    reasons = explained()
    left = [one for one in found if not (one.killed or (one.where, one.change) in reasons or alike(one.change))]
    counts = Counter("killed" if one.killed else "explained" for one in found)
    counts["explained"] -= len(left)
    for one in left:
        fate = {0: "survived", 33: "no test calls it", None: "not run"}.get(one.exit_code, f"code {one.exit_code}")
        print(f"\n{one.where}: {fate}", *one.change, sep="\n    ")
    share = counts["killed"] / max(1, len(found))
    noticed = f"{counts['killed']} noticed ({share:.1%}), {counts['explained']} explained"
    print(f"\n{name}: {len(found)} bugs planted, {noticed}")
    return len(left)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rooms", nargs="*", default=list(ROOMS), metavar="ROOM", help=f"one of {', '.join(ROOMS)}")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="bugs tried at the same time")
    parser.add_argument("--only", action="append", default=[], help="pattern of names, to try these bugs again")
    parser.add_argument("--share", type=float, help="part of the bugs to plant, from 0 to 1; else what the room says")
    parser.add_argument("--seed", type=int, default=1, help="chooses them")
    parser.add_argument("--tell", action="store_true", help="only tell the results of the last run")
    asked = parser.parse_args()
    left = 0
    for name in asked.rooms:
        if name not in ROOMS:
            parser.error(f"there is no room {name}; the rooms are {', '.join(ROOMS)}")
        folder = prepare(name, ROOMS[name])
        if not asked.tell:
            share = ROOMS[name].share if asked.share is None else asked.share
            if not asked.only:
                choose(folder, share, asked.seed)
            plant(folder, asked.workers, asked.only)
        left += tell(name, list(mutants(folder)))
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
