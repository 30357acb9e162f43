"""The small exchanges by way of the first server."""

from __future__ import annotations

import contextlib
import math

from tests.train.servers import farm

from oarlock.train.servers.wire import handshake
from oarlock.train.servers.workers import exchanges


def test_plain_values_arrive_as_they_are_also_those_that_are_no_numbers() -> None:
    """A loss may be NaN: all workers look at it, to stop together."""
    value = [None, True, -3, 0.1, math.inf, -math.inf, "nan", ("a", {"b": [1.5], 2: ()}), b"x"]
    with farm.running() as servers:
        one = exchanges.Exchanges(servers, handshake.Place(0, 1, 1, "meet"))
        with contextlib.closing(one):
            assert one.gather(value) == [value]
            (found,) = one.gather((math.nan,))
            assert math.isnan(*found)
