"""The search over sizes, against trying each size."""

from __future__ import annotations

import itertools

import pytest

from oarlock.scheduler import sizes


def test_the_last_number_is_found() -> None:
    for low, high, most in itertools.product(range(4), range(10), range(12)):
        tried: list[int] = []

        def test(number: int, most: int = most, tried: list[int] = tried) -> str | None:
            tried.append(number)
            return f"{number}" if number <= most else None

        possible = [f"{number}" for number in range(low + 1, high) if number <= most]
        assert sizes.last(low, high, test) == (possible[-1] if possible else None), (low, high, most)
        assert all(low < number < high for number in tried), (low, high, most)
        assert len(tried) == len(set(tried)), (low, high, most)


@pytest.mark.parametrize("most", range(12))
def test_the_largest_size_is_found(most: int) -> None:
    """From 2 workers and 1 server to 8 and 4, in proportion; None where not even the least does."""

    def test(size: tuple[int, ...]) -> tuple[int, ...] | None:
        return size if size[0] <= most else None

    possible = [sizes.step((2, 1), (8, 4), number) for number in range(7)]
    fitting = [size for size in possible if size[0] <= most]
    assert sizes.largest((2, 1), (8, 4), test) == (fitting[-1] if fitting else None)


def test_a_size_that_cannot_vary_is_tried_once() -> None:
    tried: list[tuple[int, ...]] = []
    assert sizes.largest((3,), (3,), tried.append) is None
    assert tried == [(3,)]
