"""Times of pages in words that go on by themselves: `3m ago`, `in 4m 05s`.

Each is an element with its moment and the form of its words. A whole page has the words as of its making, for readers
without scripts. An update has none: `times.js` writes them, by the server's clock, so that the content of a page stays
the same while nothing but the time goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jinja2
import markupsafe

from oarlock.display import durations

FORMS: Mapping[str, Callable[[float], str]] = {
    "ago": durations.ago,
    "age": durations.age,
    "lasting": durations.whole,
    "ahead": durations.ahead,
    "within": durations.within,
}
"""The words for a number of seconds, by the name of their form. `times.js` has the same."""

AHEAD = frozenset({"ahead", "within"})
"""The forms of times to come."""
ROUGH_S = 10.0
"""Forecasts are made anew all the time, and hardly differ: their times are told to so many seconds."""
_LAST = 253402300799.0  # the year 9999


def steady(at: float, step_s: float = ROUGH_S) -> float:
    """Return the time rounded up to a multiple of the step: a drawing that ends there is the same until then."""
    return -(-at // step_s) * step_s


class Now(NamedTuple):
    """The time of a page's making. An update has no `words`."""

    at: float
    words: bool


def now(context: jinja2.runtime.Context) -> Now:
    return Now(context["now"], not context["fragment"])


def moment(form: str, moment: float, now: Now) -> str:
    """Return the HTML of a moment: `3m ago` as the form has it."""
    words, at = _words(form, moment, now)
    return f'<time data-form="{form}" datetime="{at}">{words}</time>'


def duration(form: str, begin: float, now: Now) -> str:
    """Return the HTML of a duration that still grows. `begin` is its end less its length, and no moment to show."""
    words, at = _words(form, begin, now)
    return f'<span data-form="{form}" data-since="{at}">{words}</span>'


@jinja2.pass_context
def ago(context: jinja2.runtime.Context, at: float) -> markupsafe.Markup:
    """Return `3m ago`, of an event."""
    return markupsafe.Markup(moment("ago", at, now(context)))


@jinja2.pass_context
def since(context: jinja2.runtime.Context, at: float) -> markupsafe.Markup:
    """Return `3m`, of a state that began at a time."""
    return markupsafe.Markup(moment("age", at, now(context)))


@jinja2.pass_context
def ahead(context: jinja2.runtime.Context, at: float) -> markupsafe.Markup:
    """Return `in 4m 05s`, of a forecast."""
    return markupsafe.Markup(moment("ahead", round(at / ROUGH_S) * ROUGH_S, now(context)))


@jinja2.pass_context
def within(context: jinja2.runtime.Context, at: float) -> markupsafe.Markup:
    """Return `within 4m 05s`, of a time-out."""
    return markupsafe.Markup(moment("within", round(at / ROUGH_S) * ROUGH_S, now(context)))


@jinja2.pass_context
def lasting(context: jinja2.runtime.Context, begin: float, form: str = "lasting") -> markupsafe.Markup:
    """Return `4m 05s`, as `duration` does."""
    return markupsafe.Markup(duration(form, begin, now(context)))


def _words(form: str, moment: float, now: Now) -> tuple[str, str]:
    """Return the words, none in an update, and the moment as ISO 8601 in UTC, with its first decimal."""
    tenths = round(min(max(moment, 0.0), _LAST) * 10)
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(tenths // 10))}.{tenths % 10}Z"
    gone = now.at - tenths / 10
    return FORMS[form](-gone if form in AHEAD else gone) if now.words else "", at
