"""An answer with an object of any depth is read; its deep parts are left out."""

from __future__ import annotations

import msgspec
import pytest

from oarlock.backends.kubernetes.apiserver import nesting, objects

DEEP = 9_990


@pytest.mark.parametrize(("begin", "end"), [(b'{"a":', b"}"), (b"[", b"]"), (b'{"}\\"]":[', b"]}")])
def test_the_objects_beside_a_deep_one_are_read(begin: bytes, end: bytes) -> None:
    deep = begin * DEEP + b'"{["' + end * DEEP
    text = b'{"items":[{"metadata":{"name":"a\\"{"},"spec":%s},{"metadata":{"name":"b"}}]}' % deep
    found = nesting.decode(text, objects.Page[objects.Bare])
    assert [one.metadata.name for one in found.items or ()] == ['a"{', "b"]


def test_only_the_parts_below_the_bound_are_left_out() -> None:
    most, deeper = ([0, level * b"[" + b"1, {}" + level * b"]"] for level in (nesting.LEVELS - 1, nesting.LEVELS))
    assert nesting.shallow(most[1]) == most[1]
    assert nesting.shallow(deeper[1]) == nesting.LEVELS * b"[" + b"1, null" + nesting.LEVELS * b"]"


@pytest.mark.parametrize("text", [DEEP * b"[", DEEP * b"[" + b"}", b"{", b""])
def test_a_broken_answer_is_an_error_of_the_decoder(text: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        nesting.decode(text, objects.Bare)
