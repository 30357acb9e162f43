"""The blocks of a page: the text between its fences, and the words of each fence.

The first word after a fence names the language. A second word names the file as which the reader saves the block.

    ```sh                   a shell runs it, in the page's directory
    ```python               Python runs it there
    ```python train.py      saved as train.py; a later block of the page uses that file
    ```yaml job.yaml        the same
    ```toml config.toml     the reader of the server's and the client's settings takes it
    ```text                 output, or a drawing: there is nothing to run
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md")))
RUN_BY = {"sh": False, "python": None, "yaml": True, "toml": True, "text": False}
"""For each language whether a block of it names a file: it must, it must not, it may (None)."""

_FENCE = re.compile(r"```(.*)")
_ODD_FENCE = re.compile(r"\s*~~~|\s+```|````")
_LIST_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s")


class Block(NamedTuple):
    """`line` is the line of the opening fence, from 1."""

    language: str
    file: str
    text: str
    line: int


def of(page: str) -> list[Block]:
    """The fenced blocks of a page's text, in their order."""
    found: list[Block] = []
    opened: tuple[str, int] | None = None
    inner: list[str] = []
    for number, line in enumerate(page.splitlines(), 1):
        fence = _FENCE.fullmatch(line)
        if opened is None and fence is not None:
            opened, inner = (fence[1].strip(), number), []
        elif opened is not None and line == "```":
            language, _, file = opened[0].partition(" ")
            found.append(Block(language, file.strip(), "\n".join(inner) + "\n", opened[1]))
            opened = None
        elif opened is not None:
            inner.append(line)
    if opened is not None:
        found.append(Block("never closed", "", "", opened[1]))
    return found


def complaints(page: str) -> Iterator[str]:
    """Why a page's blocks cannot all be run as they stand."""
    blocks = of(page)
    for place, block in enumerate(blocks):
        at = f"line {block.line}"
        if block.language not in RUN_BY:
            yield f"{at}: a fence says sh, python, yaml, toml or text, not {block.language!r}"
            continue
        named = RUN_BY[block.language]
        if named is not None and named is not bool(block.file):
            yield f"{at}: a block of {block.language} {'names its file' if named else 'names no file'}"
        if block.language == "sh" and re.search(r"^\s*[$>] ", block.text, re.MULTILINE):
            yield f"{at}: a prompt cannot be pasted; output goes to a block of its own, of text"
        later = "".join(other.text for other in blocks[place + 1 :] if other.language in ("sh", "python"))
        if block.file and block.language != "toml" and block.file not in later:
            yield f"{at}: no later block uses {block.file}"
    yield from (f"line {number}: code stands between fences" for number in _indented(page))
    yield from (f"line {number}: a fence begins its line, with three backticks" for number in _odd_fences(page))


def _odd_fences(page: str) -> Iterator[int]:
    """Fences that `of` does not see: inside a list, of tildes, or of more backticks."""
    fenced = False
    for number, line in enumerate(page.splitlines(), 1):
        if _ODD_FENCE.match(line) and not fenced:
            yield number
        elif line.startswith("```"):
            fenced = not fenced


def _indented(page: str) -> Iterator[int]:
    """Lines that Markdown shows as code because they are indented: they cannot say how they are run."""
    fenced = in_list = False
    before = ""
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and line:
            in_list = bool(_LIST_ITEM.match(line)) or (in_list and line.startswith(" "))
            if line.startswith(("    ", "\t")) and not before and not in_list:
                yield number
        before = line
