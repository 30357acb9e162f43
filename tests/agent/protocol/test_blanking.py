"""The forms in which a secret is hidden, byte for byte, and the bytes at the end that must wait for more."""

from __future__ import annotations

import json
import urllib.parse

import pytest

from oarlock.agent.protocol import blanking

ODD = 'ge"he/im \u00fcn\nd\\+x'

FORMS = {
    "as it is": ODD,
    "as JSON": json.dumps(ODD)[1:-1],
    "as JSON with letters of its own": json.dumps(ODD, ensure_ascii=False)[1:-1],
    "as a repr": repr(ODD)[1:-1],
    "in a URL": urllib.parse.quote(ODD, safe=""),
    "in the path of a URL": urllib.parse.quote(ODD),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_hidden_to_its_last_byte(form: str) -> None:
    written = FORMS[form].encode()
    found = blanking.Blanker([ODD]).cover(b"<" + written + b">")
    assert found == b"<" + b"*" * len(written) + b">"


def test_the_forms_differ() -> None:
    """Otherwise one of them would hide for another."""
    assert len(set(FORMS.values())) == len(FORMS)


LONG = "0123456789" * 5  # longer than the 32 bytes that are compared first


@pytest.mark.parametrize(
    ("data", "held"),
    [
        ("", 0),
        ("xyz", 0),
        ("x0", 1),
        ("x" + LONG[:-1], 49),
        ("x" + LONG, 40),  # whole, so it is hidden already; the last 40 bytes are a beginning too
        ("x" + LONG[:40] + "x", 0),
        (LONG[:35] + "x" + LONG[:3], 3),
    ],
)
def test_a_beginning_of_a_secret_at_the_end_is_held_back(data: str, held: int) -> None:
    blanker = blanking.Blanker([LONG])
    assert LONG.encode() in blanker._patterns
    blanker._patterns = [LONG.encode()]  # without its base64, which begins with other letters
    assert blanker.held(data.encode()) == held


@pytest.mark.parametrize(("secret", "hidden"), [("abc", False), ("abcd", True)])
def test_a_secret_of_three_characters_is_not_looked_for(secret: str, hidden: bool) -> None:
    assert (blanking.Blanker([secret]).cover(f"x {secret} y".encode()) == b"x **** y") is hidden


def test_the_context_is_one_byte_less_than_the_longest_form() -> None:
    blanker = blanking.Blanker(["abcd", LONG])
    assert blanker.reach == max(len(pattern) for pattern in blanker._patterns) - 1
    assert blanking.Blanker([]).reach == 0


def test_a_short_text_is_covered_too() -> None:
    assert blanking.Blanker(["abcd"]).text("an abcd \udcff") == "an **** ?"
