"""Forms with files that arrive piece by piece: the same fields however they are cut, and faults in one sentence."""

from __future__ import annotations

import pytest

from oarlock.spec import errors
from oarlock.web.access import multipart

MEDIA = 'multipart/form-data; boundary="--cut"'
BODY = (
    b'----cut\r\nContent-Disposition: form-data; name="text"\r\n\r\none\r\n--two\r\n----cu\r\n'
    b'----cut\r\nContent-Disposition: form-data; name="empty"\r\n\r\n\r\n'
    b'----cut\r\nContent-Disposition: form-data; name="archive"; filename="a.zip"\r\nContent-Type: x/y\r\n\r\n'
    b"\x00\r\n\xff\r\n----cut-not\r\n----cut--\r\n"
)
"""The file of the third field ends before the line that begins as its delimiter does."""


def taken(*pieces: bytes) -> list[tuple[multipart.Head, bytes]]:
    parts = multipart.Parts(MEDIA)
    found: list[tuple[multipart.Head, bytes]] = []
    for piece in pieces:
        for one in parts.feed(piece):
            if isinstance(one, multipart.Head):
                found.append((one, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + one)
    assert parts.ended
    return found


def test_a_form_is_the_same_however_it_is_cut() -> None:
    body = BODY.replace(b"\r\n----cut-not", b"\r\n----cu-not")
    whole = taken(body)
    assert whole == [
        (multipart.Head("text", None), b"one\r\n--two\r\n----cu"),
        (multipart.Head("empty", None), b""),
        (multipart.Head("archive", b"a.zip"), b"\x00\r\n\xff\r\n----cu-not"),
    ]
    assert taken(*(bytes([one]) for one in body)) == whole
    for at in range(len(body)):
        assert taken(body[:at], body[at:]) == whole
    fields = multipart.fields(body, MEDIA, binary=True)
    assert fields == {"text": ["one\r\n--two\r\n----cu"], "empty": [""]}, "as it is read at once"
    with pytest.raises(errors.InvalidInput, match=r"a\.zip is not text"):
        multipart.fields(body, MEDIA)


@pytest.mark.parametrize(
    "body",
    [
        b"hello" * 10,
        b"----other\r\n\r\n\r\n",
        b'----cut\r\nContent-Disposition: form-data; filename="x"\r\n\r\n',
        b"----cut\r\n" + b"x" * (multipart.MOST_HEAD_BYTES + 1),
        b'----cut\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n',
        b'----cut\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * (multipart.MOST_PARTS + 1),
        BODY,
    ],
)
def test_a_form_that_is_not_valid_is_refused(body: bytes) -> None:
    with pytest.raises(errors.InvalidInput):
        taken(body)


def test_a_form_that_is_cut_off_has_not_ended() -> None:
    parts = multipart.Parts(MEDIA)
    list(parts.feed(BODY[:100]))
    assert not parts.ended
    with pytest.raises(errors.InvalidInput):
        multipart.Parts("multipart/form-data")
