"""Open pages, by the times of their looks and of their last request."""

from __future__ import annotations

import pytest

from oarlock.web.updates import openpages, topics


def test_a_page_is_due_after_its_period_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(openpages.time, "monotonic", lambda: now[0])
    pages, address = openpages.OpenPages(), openpages.Address("ann", "/", b"")
    for name, period_s in {"events": 0, "runs": 5, "waits": 60}.items():
        assert pages.note("session", name, address, ("jobs",), "mark", period_s)
    assert not pages.note("session", "Bad!", address, ("jobs",), "mark", 5)
    found = []
    for at in (1, 2, 3, 4, 60, 61):
        now[0] = at
        found.append(sorted(pages.due("session")))
    assert found == [[], ["runs"], [], ["runs"], ["runs", "waits"], []]
    now[0] = 119
    pages.concerned("session", frozenset({"jobs"}))
    now[0] = 120
    assert not pages.due("session"), "news have looked at them"


def test_pages_that_have_not_asked_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(openpages.time, "monotonic", lambda: now[0])
    pages = openpages.OpenPages()
    for number in range(openpages.MOST + 2):
        pages.note("session", f"page{number}", openpages.Address("ann", "/jobs", b""), ("jobs",))
    found = pages.concerned("session", frozenset({"jobs"}))
    assert (len(found), "page0" in found, "page2" in found) == (openpages.MOST, False, True)
    assert pages.concerned("session", frozenset({"nodes"})) == {}
    assert pages.concerned("another", frozenset({topics.EVERYTHING})) == {}
    now[0] = openpages.KEPT_S / 2
    changed = openpages.Address("ann", "/jobs", b"a=1")
    pages.note("session", "page9", changed, ("jobs",))
    now[0] = openpages.KEPT_S + 1
    assert {name: one.address for name, one in pages.concerned("session", frozenset({topics.EVERYTHING})).items()} == {
        "page9": changed
    }
