"""A held port is free where nothing listens there, by IPv4 or by IPv6."""

from __future__ import annotations

import contextlib
import socket

import pytest

from oarlock.agent.protocol import ports


@contextlib.contextmanager
def listening():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(1)
        yield one


def test_a_port_that_is_taken_by_either_family_is_not_free():
    families = [(socket.AF_INET, "127.0.0.1")]
    if socket.has_dualstack_ipv6():
        families.append((socket.AF_INET6, "::"))
    for family, address in families:
        with socket.socket(family, socket.SOCK_STREAM) as taken:
            if family == socket.AF_INET6:
                taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            taken.bind((address, 0))
            taken.listen(1)
            port = taken.getsockname()[1]
            assert ports.free([port], 1) == []
        assert ports.free([port], 1) == [port]


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_a_port_at_which_another_agent_only_tries_the_same_is_free(monkeypatch, tries):
    pauses = []
    with listening() as other:

        def sleep(pause_s):
            pauses.append(pause_s)
            if len(pauses) == tries:
                other.close()

        monkeypatch.setattr(ports.time, "sleep", sleep)
        port = other.getsockname()[1]
        assert ports.free([port], 1) == [port]
    assert len(pauses) == tries


def test_nothing_waits_for_a_port_that_is_not_needed(monkeypatch):
    pauses = []
    monkeypatch.setattr(ports.time, "sleep", pauses.append)
    with listening() as taken, listening() as other:
        block = [taken.getsockname()[1], other.getsockname()[1]]
        other.close()
        assert ports.free(block, 1) == block[1:]
        assert not pauses
        assert ports.free(block, 2) == block[1:]
        assert len(pauses) == len(ports.AGAIN_S)
