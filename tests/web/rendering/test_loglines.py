"""A line of a log as a row of HTML: each text in it is escaped, and characters that hide text are shown by number."""

from __future__ import annotations

from typing import Any

import pytest

from oarlock.web.rendering import loglines

ADDRESS = "worker-1:1:2:stdout.0:65"
HOSTILE = '<b>&"\u202e'
ESCAPED = "&lt;b&gt;&amp;&#34;[U+202E]"


def row(**changed: Any) -> str:
    usual = {"address": ADDRESS, "classes": "", "to": "/jobs/j-1/log?line=", "at": 3661.25, "origin": "worker-1"}
    return loglines.row(**{**usual, "tasks": "", "count": 1, "parts": [("a < b", "", False)], **changed})


def test_a_row_links_to_itself_and_has_its_time() -> None:
    link = "/jobs/j-1/log?line=worker-1%3A1%3A2%3Astdout.0%3A65#worker-1:1:2:stdout.0:65"
    time = '<time datetime="1970-01-01T01:01:01Z">01:01:01.250</time>'
    assert row() == f'<li id="{ADDRESS}"><a href="{link}">{time} worker-1</a><code>a &lt; b</code></li>\n'


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"origin": 65}, "</time> 65</a><code>"),
        ({"classes": "chosen err"}, f'<li id="{ADDRESS}" class="chosen err">'),
        ({"count": 3, "tasks": "worker-1 to 3"}, '</a><b title="worker-1 to 3">×3</b><code>'),
        ({"parts": [("a", "f1", False), ("b", "f1", True)]}, '<code><span class="f1">a</span><mark>b</mark></code>'),
        ({"parts": []}, "<code></code>"),
    ],
)
def test_a_row_shows_its_facts(changed: dict[str, Any], told: str) -> None:
    assert told in row(**changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"address": HOSTILE},
        {"to": HOSTILE},
        {"origin": HOSTILE},
        {"tasks": HOSTILE, "count": 2},
        {"parts": [(HOSTILE, "", False)]},
        {"parts": [(HOSTILE, "f1", False)]},
        {"parts": [(HOSTILE, "", True)]},
    ],
)
def test_each_text_of_a_row_is_escaped(changed: dict[str, Any]) -> None:
    found = row(**changed)
    assert ESCAPED in found
    assert "\u202e" not in found
    assert "<b>" not in found


@pytest.mark.parametrize("letter", ["<", ">", "&", '"', "'", "\r", "\x1b", "\x00", "\x7f", "\u200b", "\ud800"])
def test_no_letter_that_html_reads_or_hides_comes_through(letter: str) -> None:
    shown = row(parts=[(f"x{letter}y", "", False)]).partition("<code>x")[2].partition("y</code>")[0]
    assert letter not in shown.removeprefix("&")
    assert shown.startswith(("&", "[U+"))


def test_letters_of_all_tongues_stay() -> None:
    assert "<code>Größe 漢字 \t 🚣</code>" in row(parts=[("Größe 漢字 \t 🚣", "", False)])
