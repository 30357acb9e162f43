"""A job of the list as a row of HTML: what each column shows, and that no text of a user is read as HTML."""

from __future__ import annotations

import html.parser
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from oarlock.spec import intents, phases, summaries
from oarlock.web.rendering import jobrows, times

PLAIN, HOSTILE = "simple", {'<b>&"\u202e': '<b>&"[U+202E]', "\"'>a=<": "\"'>a=<", "&#60;x": "&#60;x"}
"""Texts of six characters, as many as a short id has, with what is to be read of them."""
NOW = times.Now(1000.0, words=True)


def job(**changed: Any) -> summaries.Summary:
    usual: dict[str, Any] = {"id": "j-0123456789abcdef", "name": "one", "owner": "ann", "pool": "default"}
    usual |= {"phase": phases.Phase.PROCESSING, "phase_at": 1.0, "created_at": 700.0, "command": "true"}
    return summaries.Summary(**{**usual, "tasks": {"worker": 2, "ps": 1}, **changed})


def test_a_row_has_a_box_the_phase_and_the_name_before_its_columns() -> None:
    assert jobrows.row(job(wanted=intents.Intent.HALT), ("owner", "priority"), NOW) == (
        '<tr id="row-j-0123456789abcdef">'
        '<td><input type="checkbox" name="job" value="j-0123456789abcdef" aria-label="select one"></td>\n'
        '<td><span class="phase blue"><span aria-hidden="true">▶</span> PROCESSING</span>'
        ' <span class="quiet">halt</span></td>\n'
        '<th scope="row"><a href="/jobs/j-0123456789abcdef">one</a> <span class="quiet id">abcdef</span></th>\n'
        '<td class="wide">ann</td><td class="number">0</td></tr>'
    )


READING = summaries.Reading(step=120, fraction=0.5, loss=0.02134)
BAR = '<svg class="progress" role="img" aria-label="50%" width="80" height="8" viewBox="0 0 80 8">'
BAR += '<rect class="open" width="80" height="8"/><rect class="blue" width="40.0" height="8"/></svg>'


@pytest.mark.parametrize(
    ("column", "changed", "shown"),
    [
        ("owner", {}, "ann"),
        ("pool", {}, "default"),
        ("tasks", {}, "2 w 1 ps"),
        ("gpus", {}, ""),
        ("gpus", {"gpus": 0.5}, "0.5"),
        ("progress", {}, ""),
        ("progress", {"reading": READING}, BAR),
        ("progress", {"reading": READING, "phase": phases.Phase.FAILED}, "step 120"),
        ("progress", {"reading": summaries.Reading(step=7)}, "step 7"),
        ("loss", {}, ""),
        ("loss", {"reading": summaries.Reading(step=7)}, ""),
        ("loss", {"reading": READING}, "0.02134"),
        ("loss", {"reading": summaries.Reading(step=7, loss=float("nan"))}, "nan"),
        ("ran", {"ran_s": 61.0}, ""),
        ("ran", {"ran_s": 61.0, "started_at": 900.0}, "1m"),
        (
            "ran",
            {"ran_s": 60.0, "started_at": 900.0, "running_from": 940.0},
            '<span data-form="age" data-since="1970-01-01T00:15:40.0Z">1m</span>',
        ),
        ("age", {}, '<time data-form="age" datetime="1970-01-01T00:11:40.0Z">5m</time>'),
        ("priority", {"priority": 77}, "77"),
        ("restarts", {"restarts": 3}, "3"),
        ("cost", {"cost": 1.234}, "1.23"),
        ("command", {}, "<code>true</code>"),
        ("where", {"reason": "It waits."}, "It waits."),
        ("where", {"places": (summaries.Place("n0", (0, 1)),), "nodes": 1}, "on n0 (GPUs 0-1)"),
    ],
)
def test_each_column_shows_its_fact(column: str, changed: dict[str, Any], shown: str) -> None:
    (found,) = re.findall('<td class="(?:number|wide)">(.*)</td></tr>', jobrows.row(job(**changed), (column,), NOW))
    assert found == shown


def test_an_update_has_no_words_for_times_that_go_on() -> None:
    running = job(started_at=900.0, running_from=940.0, ran_s=60.0)
    found = [
        jobrows.row(msgspec.structs.replace(running, ran_s=now - 940.0), tuple(jobrows.COLUMNS), times.Now(now, False))
        for now in (1000.0, 5000.0)
    ]
    assert found[0] == found[1], "every open page would fetch itself for its ages alone"


class Parsed(html.parser.HTMLParser):
    """The elements of a row with their attributes, and its texts, in their order."""

    def __init__(self, row: str) -> None:
        super().__init__()
        self.found: list[tuple[str, Any]] = []
        self.feed(row)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("end", tag))

    def handle_data(self, data: str) -> None:
        self.found.append(("text", data))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", data))


FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "id": lambda text: {"id": text},
    "name": lambda text: {"name": text},
    "owner": lambda text: {"owner": text},
    "pool": lambda text: {"pool": text},
    "tasks": lambda text: {"tasks": {text: 1}},
    "command": lambda text: {"command": text},
    "reason": lambda text: {"reason": text},
    "places": lambda text: {"places": (summaries.Place(text, ()),), "nodes": 1},
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("field", FIELDS)
def test_a_hostile_text_makes_no_element_and_no_attribute_and_reads_as_it_is(field: str, hostile: str) -> None:
    def parsed(text: str) -> list[tuple[str, Any]]:
        return Parsed(jobrows.row(job(**FIELDS[field](text)), tuple(jobrows.COLUMNS), NOW)).found

    def told(value: str, *, link: bool = False) -> str:
        return value.replace(PLAIN, quote(hostile, safe="") if link else HOSTILE[hostile])

    expected: list[tuple[str, Any]] = [
        (
            kind,
            told(what) if isinstance(what, str) else [(name, told(value, link=name == "href")) for name, value in what],
        )
        for kind, what in parsed(PLAIN)
    ]
    assert expected != parsed(PLAIN), "the row shows the field"
    assert parsed(hostile) == expected


def test_a_row_of_an_update_is_made_anew_only_where_its_job_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made, make = times.Now(1000.0, words=False), [], jobrows.row

    def counted(one: summaries.Summary, columns: Sequence[str], at: times.Now) -> str:
        made.append(one.name)
        return make(one, columns, at)

    monkeypatch.setattr(jobrows, "row", counted)
    monkeypatch.setattr(jobrows, "_ROWS", {})
    frozen = job(id="j-2", name="frozen", frozen_until=2000.0, reason="It failed.")
    changed = job(name="two", reading=summaries.Reading(step=7))
    shown: list[tuple[summaries.Summary, tuple[str, ...]]] = [(job(), ("owner",)), (changed, ("owner",))]
    shown += [(changed, ("progress",)), (frozen, ("where",))]
    for one, columns in shown:
        for _ in range(2):
            assert jobrows._kept(one, columns, now) == make(one, columns, now)
    assert made == ["one", "two", "two", "frozen", "frozen"], "the time until which it is frozen has a day, or none"
    monkeypatch.setattr(jobrows, "MOST_KEPT", 2)
    for number in range(5):
        jobrows._kept(job(id=f"j-{number}"), ("owner",), now)
    assert len(jobrows._ROWS) <= 2


def test_long_texts_are_cut() -> None:
    found = jobrows.row(job(name="n" * 300, command="c" * 300), ("command",), NOW)
    label, name, command = f"select {'n' * 80}… (300", f">{'n' * 200}… (300", f"<code>{'c' * 200}… (300"
    assert all(one in found for one in (label, name, command))
