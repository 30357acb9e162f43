"""A snapshot holds the files that git would add: git itself is the oracle."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests import examples

from oarlock.data.snapshots import ignores, trees

NAMES = ["a", "b", "ab", "a.txt", "b.txt", "build", "keep", "a b", "#x", "!y", "[a]", "a]", "é", "x\\y", "-", "a "]
FILES = st.lists(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join), min_size=1, max_size=8, unique=True
)
PIECES = [
    *NAMES,
    "*",
    "**",
    "?",
    "*.txt",
    "[ab]",
    "[!a]",
    "[^b]*",
    "[a-c]",
    "[]a]",
    "[[:alpha:]]",
    "[z-a]",
    "[",
    "\\#x",
    "\\!y",
    "a*b",
    "a\\ ",
]
PATTERN = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "", "", "!"]),
        st.sampled_from(["", "", "/", "**/"]),
        st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("/".join),
        st.sampled_from(["", "", "/", "/**", " ", "\r"]),
    ),
)
IGNORE = st.lists(PATTERN, max_size=4).map("\n".join)


def gits_answer(root: Path) -> set[bytes]:
    # No system or global configuration: only the files in the tree speak.
    env = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1", "GIT_DIR": f"{root}/.git"}
    subprocess.run(["git", "init", "-q", str(root)], env=env, check=True, timeout=280, capture_output=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=root, env={**env, "GIT_WORK_TREE": str(root)}, check=True, timeout=280, capture_output=True,
    )  # fmt: skip
    return set(listed.stdout.split(b"\0")) - {b""}


def ours(root: Path) -> set[bytes]:
    return {entry.path for entry in trees.walk(root).entries if not entry.is_folder}


@settings(max_examples=examples.at_most(60), suppress_health_check=[HealthCheck.too_slow])
@given(FILES, IGNORE, IGNORE)
@example(["a/b.txt", "a/a/keep"], "*.txt\n!a/", "")
@example(["build/keep", "build/a"], "build/**\n!build/keep", "")
@example(["build/keep"], "build\n!build/keep", "")
@example(["a/b/ab", "a/ab"], "a/**/ab", "!b")
@example(["a/b/ab"], "/a*b", "")
@example(["a ", "a"], "a\\ ", "a ")
@example(["x\\y", "[a]"], "x\\\\y\n\\[a]", "")
def test_the_rules_are_gits(files: list[str], rules: str, nested: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for file in files:
            try:
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text("x")
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue  # `a` and `a/b` cannot both be files
        (root / ".gitignore").write_text(rules, newline="")
        if (root / "a").is_dir():
            (root / "a" / ".gitignore").write_text(nested, newline="")
        assert ours(root) == gits_answer(root)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_ignore_file(text: bytes) -> None:
    ignores.Rules(text).ignored(b"a/b", b"b")


def test_a_repositorys_rules_hold_in_its_folders(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*.ckpt\n/sub/out/\n/out\nsub/deep.txt\n")
    sub = tmp_path / "sub"
    (sub / "out").mkdir(parents=True)
    for name in ["a.py", "w.ckpt", "out/x", "deep.txt"]:
        (sub / name).write_text("x")
    assert ours(sub) == {b"a.py"}


def test_oarlocks_own_file_wins(tmp_path: Path) -> None:
    for name in ["weights.bin", "a.py", "notes.md"]:
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / ".oarlockignore").write_text("!weights.bin\n*.md\n")
    assert ours(tmp_path) == {b"weights.bin", b"a.py", b".gitignore", b".oarlockignore"}
    assert [str(one) for one in trees.walk(tmp_path).left_out] == ["notes.md (.oarlockignore)"]


def test_a_bracket_without_members_stands_for_one_character_or_none() -> None:
    """A range that runs backwards has no members."""
    all_but_none, none = ignores.Rules(b"[!z-a]b\n"), ignores.Rules(b"[z-a]b\n")
    names = [b"ab", b"b", b"a", b"abb", b"[z-a]b"]
    assert [name for name in names if all_but_none.ignored(name, name)] == [b"ab"]
    assert [name for name in names if none.ignored(name, name)] == []
