"""The cursor of the points that have arrived: it fits a request, and nothing strange in one does harm."""

from __future__ import annotations

import base64
import random
import zlib
from urllib.parse import urlencode

import pytest

from oarlock.data.metrics import arrivals
from oarlock.spec import errors

HEAD_BYTES = 16 << 10
"""The most bytes of the lines of a request that uvicorn reads. Source: `h11.Connection`."""
OTHERS_BYTES = 2_000
"""Other lines: the token, the host, the kind of client."""


def packed(content: bytes) -> str:
    return "z." + base64.urlsafe_b64encode(zlib.compress(content)).decode().rstrip("=")


def test_the_longest_cursor_fits_the_head_of_a_request() -> None:
    """A feed of 600 processes got 431 or a closed connection, and its TensorBoard stood still."""
    draw = random.Random(1)
    places = {
        ("worker", index // 8, index % 8): arrivals.Place(12, index % 3, draw.randrange(10**11))
        for index in range(arrivals.MOST_PROCESSES)
    }
    cursor = arrivals.text(places)
    assert arrivals.parsed(cursor) == places
    assert len(urlencode({"after": cursor})) < HEAD_BYTES - OTHERS_BYTES


def test_a_short_cursor_is_plain_and_the_plain_form_stays_valid() -> None:
    """Feeds of an earlier server hold long plain ones."""
    places = {("worker", index, 0): arrivals.Place(1, 1, index) for index in range(300)}
    one = {("worker", 0, 0): arrivals.Place(1, 2, 5308)}
    assert arrivals.text(one) == "worker/0/0:1.2.5308"
    plain = ",".join(arrivals.text({process: place}) for process, place in places.items())
    assert len(arrivals.text(places)) < len(plain)
    assert arrivals.parsed(plain) == places


@pytest.mark.parametrize(
    "after",
    [
        "z.",
        "z.%%%",
        "z.AAAA",
        "worker",
        packed(b"worker"),
        packed(b"\xff"),
        packed(b"0" * 10_000_000),
        packed(b"worker/0/0:1.1.1," * 20_000),
    ],
)
def test_a_text_that_is_not_a_cursor_is_refused(after: str) -> None:
    with pytest.raises(errors.InvalidInput):
        arrivals.parsed(after)
