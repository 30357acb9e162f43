"""The habits of this code base that no linter knows (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import language
from tests.documentation import blocks

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "oarlock"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PUBLIC = {PACKAGE / "__init__.py", PACKAGE / "train" / "__init__.py"}
EMPTY = [path for path in SOURCES if path.name == "__init__.py" and path not in PUBLIC]
MODULES = [path for path in SOURCES if path not in EMPTY]

MAX_LINES = 600
# A name that says nothing about its content collects whatever has no better place.
NAMELESS = {"base", "common", "helper", "helpers", "manager", "managers", "misc", "shared", "util", "utils"}

LIMIT = language.Rates(who=1.0, nobody=0.3, what=4.0, starts=0)
UNMENDED: dict[str, language.Rates] = {}
"""Rooms whose text is not yet plain, with their present rates. These may only fall; a mended room leaves the list."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert PACKAGE / "__init__.py" in MODULES


def test_a_module_can_be_read_in_one_sitting() -> None:
    lines = {name(path): len(path.read_text().splitlines()) for path in MODULES}
    long = {module: count for module, count in lines.items() if count > MAX_LINES}
    assert not long, f"look for the noun that hides in it: at most {MAX_LINES} lines"


def test_a_module_is_named_after_its_contents() -> None:
    """Name it after the noun that it holds, or move the code beside its only user."""
    assert [name(path) for path in SOURCES if words_of(path) & NAMELESS] == []


def words_of(path: Path) -> set[str]:
    names = {part.lstrip("_").removesuffix(".py") for part in path.relative_to(PACKAGE).parts}
    return {word for part in names for word in part.split("_")}


def test_a_package_exports_nothing_of_its_own() -> None:
    """Modules are imported whole (`from oarlock.spec import jobs`)."""
    assert [name(path) for path in EMPTY if path.read_text().strip()] == []


def test_a_module_describes_the_flow_through_it() -> None:
    assert [name(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))] == []


NO_VERB = re.compile(
    r"[^A-Z]|(Again|As|At|Because|Beyond|By|From|How|If|In|Not|Nothing|On|Once|Until|What|When|Where|Whether|Which)\b"
)
"""Where a first line begins like this, its verb is missing. Ruff's D401 finds articles, and verbs in another form."""


@pytest.mark.parametrize("room", [PACKAGE, ROOT / "bench", ROOT / "tools"], ids=lambda room: room.name)
def test_the_docstring_of_a_function_begins_with_a_verb(room: Path) -> None:
    found = [
        f"{name(path)}:{node.lineno}: {text.splitlines()[0]}"
        for path in sorted(room.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node)
        if (text := ast.get_docstring(node)) and NO_VERB.match(text)
    ]
    assert not found, "say what it does, as in `Return the nodes that ...`\n" + "\n".join(found)


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the docstring describes a value, as that of a field does."""
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_every_block_of_a_page_says_how_it_is_run() -> None:
    """`tests/documentation` runs them."""
    told = {name(page): list(blocks.complaints(page.read_text(encoding="utf-8"))) for page in blocks.PAGES}
    assert {page: complaints for page, complaints in told.items() if complaints} == {}


ROOMS = [
    "docs",
    "docs/cli.md",
    "root",
    "tests",
    "bench",
    *sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")),
]


def texts(room: str) -> Iterator[language.Text]:
    """Yield the texts of a room of `src/oarlock`, of a page, of a folder, or of `docs`: other pages and examples."""
    pages, modules = [ROOT / room] if room.endswith(".md") else [], (PACKAGE / room).rglob("*.py")
    if room == "docs":
        modules = ROOT.glob("examples/**/*.py")
        found = (ROOT.glob(pattern) for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "examples/**/*.yaml"))
        pages = [path for each in found for path in each if path != ROOT / "docs/cli.md"]
    elif room == "root":
        modules = PACKAGE.glob("*.py")
    elif room in {"tests", "bench"}:
        modules = (path for path in (ROOT / room).rglob("*.py") if path.name not in {"language.py", "test_style.py"})
    for page in pages:
        yield from language.in_page(page)
    for module in modules:
        yield from language.in_module(module)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_written_in_plain_english(room: str) -> None:
    """CONTRIBUTING.md, Plain English."""
    written = list(texts(room))
    over = list(language.complaints(written, UNMENDED.get(room, LIMIT)))
    assert not over, f"{room}: name the noun instead (CONTRIBUTING.md, Plain English)\n" + "\n".join(over)
    mended = not list(language.complaints(written, LIMIT))
    assert not (mended and room in UNMENDED), f"{room} is plain now: delete its line from UNMENDED in this file"


def test_an_obscure_sentence_is_counted(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Of those that wait."""\n'
        'def f(x):\n    """Whoever comes first."""  # what nobody asked for, `what`\n'
        '    return f"{x} is somebody whose job waits", "who"\n'
    )
    written = list(language.in_module(module))
    words = 4 + 3 + 4 + 5
    assert language.rates(written) == pytest.approx((2 / words * 1000, 2 / words * 1000, 1 / words * 1000, 2))
    assert list(language.places(written, language.COUNTED["nobody"])) == [
        f"{module}:4: _ is somebody whose job waits",
        f"{module}:3: # what nobody asked for, _",
    ]


def test_the_code_of_a_page_is_not_its_text(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Say `what`:\n\n```sh\nwhat\n```\n\nOf what is said.\n")
    assert list(language.places(language.in_page(page), language.COUNTED["what"])) == [f"{page}:7: Of what is said."]
