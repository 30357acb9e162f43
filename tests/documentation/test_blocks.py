"""A block that nothing would run is found."""

from __future__ import annotations

import pytest
from tests.documentation import blocks

FENCE = "```"


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (f"{FENCE}\nls\n{FENCE}\n", "line 1: a fence says sh, python, yaml, toml or text, not ''"),
        (f"{FENCE}console\nls\n{FENCE}\n", "line 1: a fence says sh, python, yaml, toml or text, not 'console'"),
        (
            f"{FENCE}sh\n$ ls\n{FENCE}\n",
            "line 1: a prompt cannot be pasted; output goes to a block of its own, of text",
        ),
        (f"{FENCE}yaml\na: b\n{FENCE}\n", "line 1: a block of yaml names its file"),
        (f"{FENCE}sh a.sh\nls\n{FENCE}\n{FENCE}sh\n. a.sh\n{FENCE}\n", "line 1: a block of sh names no file"),
        (f"{FENCE}python a.py\n1\n{FENCE}\n", "line 1: no later block uses a.py"),
        (f"text\n\n{FENCE}sh\nls\n", "line 3: a fence says sh, python, yaml, toml or text, not 'never closed'"),
        (f"- item\n\n  {FENCE}sh\n  ls\n  {FENCE}\n", "line 3: a fence begins its line, with three backticks"),
        ("~~~sh\nls\n", "line 1: a fence begins its line, with three backticks"),
        ("text\n\n    oarlock ps\n", "line 3: code stands between fences"),
    ],
)
def test_a_block_that_nothing_would_run_is_found(page: str, complaint: str) -> None:
    assert next(blocks.complaints(page)) == complaint


def test_a_page_that_can_be_run_is_not_blamed() -> None:
    listed = "- an item\n\n    which goes on\n\nText:\n\n"
    page = f"{listed}{FENCE}python a.py\n1\n{FENCE}\n\n{FENCE}sh\npython a.py\n{FENCE}\n"
    assert not list(blocks.complaints(page))
    assert [block.file for block in blocks.of(page)] == ["a.py", ""]
