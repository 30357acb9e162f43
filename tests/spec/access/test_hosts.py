"""The host of a request: two spellings of one host are the same, and a text without a host is no origin."""

from __future__ import annotations

import pytest

from oarlock.spec.access import hosts


@pytest.mark.parametrize(
    ("header", "name"),
    [("LocalHost:8123", "localhost"), ("node-1", "node-1"), ("[::1]:8123", "[::1]"), ("[::1]", "[::1]"), ("", "")],
)
def test_a_port_is_not_part_of_a_hosts_name(header: str, name: str) -> None:
    assert hosts.name(header) == name


@pytest.mark.parametrize(
    ("origin", "host"),
    [("http://node-1:8123", "node-1:8123"), ("null", None), ("", None), ("http://[::1", None), ("file:///x", None)],
)
def test_an_origin_without_a_host_equals_no_host(origin: str, host: str | None) -> None:
    assert hosts.of_origin(origin) == host
