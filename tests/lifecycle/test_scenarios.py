"""The life of a job, told as scenarios: `scenarios/*.txt` in the language of `script.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.lifecycle import script

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def replay(text: str) -> str:
    """The file with what is seen now in place of what was expected."""
    play, out = script.Play(), []
    for block in text.strip("\n").split("\n\n"):
        commands = block.split("\n----", 1)[0].split("\n")
        seen: list[str] = []
        for line in commands:
            if line and not line.startswith("#"):
                try:
                    seen += play.run(line)
                except Exception as error:
                    raise AssertionError(f"in the block {commands}: {line}") from error
        out.append("\n".join([*commands, *(["----", *seen] if seen else [])]))
    return "\n\n".join(out) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    seen = replay(text)
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(seen)
    assert seen.split("\n") == text.split("\n") or os.environ.get("REWRITE_SCENARIOS")


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 8
