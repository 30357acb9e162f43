"""The text of the code and of the pages, and how many of its words make a sentence hard to read.

"who", "nobody" and "what" often stand where a noun is missing: "the gang that waits" says more than "who waits".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

COUNTED = {
    "who": re.compile(r"\b(who|whoever|whom|whose)\b", re.IGNORECASE),
    "nobody": re.compile(r"\b(nobody|somebody)\b", re.IGNORECASE),
    "what": re.compile(r"\bwhat\b", re.IGNORECASE),
}
BAD_START = re.compile(r"\b(Of|Whoever)\b(?= [a-z0-9`\"'(])")
SENTENCE_WORDS = 4
"""Shorter string literals are mostly keys and names."""

_STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""|'
    r"'''(?:\\.|[^\\])*?'''|"
    r'"(?:\\.|[^"\\\n])*"|'
    r"'(?:\\.|[^'\\\n])*'|"
    r"(?P<comment>#[^\n]*)",
    re.DOTALL,
)
"""A tokenizer in Python takes several times as long as all other steps together."""

_CODE = re.compile(r"``.+?``|`[^`\n]*`")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"[A-Za-z][A-Za-z']*")


class Text(NamedTuple):
    """A docstring, a comment, a string literal or a page. `line` counts from 1."""

    path: Path
    line: int
    text: str


class Rates(NamedTuple):
    """Counted words for each 1,000 words, and the number of sentences that start with "Of" or "Whoever"."""

    who: float
    nobody: float
    what: float
    starts: int


def in_module(path: Path) -> Iterator[Text]:
    """Yield the module's docstrings and comments, and its string literals of at least four words."""
    source = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        text = _literal(node) if isinstance(node, ast.Constant | ast.JoinedStr) else ""
        if id(node) not in inside and (id(node) in docstrings or len(_WORD.findall(text)) >= SENTENCE_WORDS):
            yield Text(path, getattr(node, "lineno", 0), _CODE.sub("_", text))
    for found in _STRING_OR_COMMENT.finditer(source):
        if found["comment"]:
            yield Text(path, source.count("\n", 0, found.start()) + 1, _CODE.sub("_", found["comment"]))


def in_page(path: Path) -> Iterator[Text]:
    """Yield the page without its code. Lines keep their numbers."""
    page = _FENCED.sub(lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"))
    yield Text(path, 1, _CODE.sub("_", page))


def rates(texts: Iterable[Text]) -> Rates:
    whole = "\n".join(each.text for each in texts)
    thousands = max(len(_WORD.findall(whole)), 1) / 1000
    found = {name: len(pattern.findall(whole)) / thousands for name, pattern in COUNTED.items()}
    return Rates(**found, starts=len(BAD_START.findall(whole)))


def complaints(texts: Iterable[Text], limit: Rates) -> Iterator[str]:
    """Yield each limit that the texts exceed, followed by the lines that do it."""
    texts = list(texts)
    found = rates(texts)
    for name, pattern in (COUNTED | {"starts": BAD_START}).items():
        rate, most = getattr(found, name), getattr(limit, name)
        if rate > most:
            counted = 'sentences start with "Of" or "Whoever"' if name == "starts" else f'"{name}" per 1,000 words'
            yield f"{rate:.4g} {counted}, at most {most}:"
            yield from places(texts, pattern)


def places(texts: Iterable[Text], pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield `file:line: the line` for each line of the texts in which the pattern is found."""
    for each in texts:
        for number, line in enumerate(each.text.splitlines(), each.line):
            if pattern.search(line):
                yield f"{each.path}:{number}: {line.strip()[:120]}"


def _literal(node: ast.AST) -> str:
    """Return the text of a string literal, with a gap for each value of an f-string; else an empty text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part) or "_" for part in node.values)
    return ""
