"""The names of hosts: torch does not wait for a name server that does not answer."""

from __future__ import annotations

import ipaddress
import socket
import threading
from pathlib import Path

import pytest
from tests.train import crew

from oarlock import train
from oarlock.train import hostnames

GIVEN_UP = "The hostname of the client socket cannot be retrieved"
"""What torch says when it stops to look names up."""


def meet(folder: Path, *, answers: bool) -> None:
    """Join the other rank, whose machine counts as another one. The name server answers, or never does."""
    ipaddress.IPv4Address.is_loopback = property(lambda address: False)  # type: ignore[assignment]
    socket.gethostbyaddr = _no_such_host if answers else _never
    assert train.init().gather("here") == ["here"] * 2


def _no_such_host(address: str) -> tuple[str, list[str], list[str]]:
    raise socket.herror(1, "Unknown host")


def _never(address: str) -> tuple[str, list[str], list[str]]:
    threading.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("env", [{}, {"OARLOCK_ELASTIC": "1"}], ids=["fixed", "elastic"])
def test_where_no_name_server_answers_torch_asks_no_more(tmp_path: Path, env: dict[str, str]) -> None:
    assert crew.run(_meet_without_answer, tmp_path, folder=tmp_path, env=env) == [0, 0], crew.output(tmp_path)
    assert crew.output(tmp_path).count(GIVEN_UP) == 2


def test_where_one_answers_torch_goes_on_to_ask(tmp_path: Path) -> None:
    assert crew.run(_meet_with_answer, tmp_path, folder=tmp_path) == [0, 0], crew.output(tmp_path)
    assert GIVEN_UP not in crew.output(tmp_path)


def _meet_without_answer(folder: Path) -> None:
    meet(folder, answers=False)


def _meet_with_answer(folder: Path) -> None:
    meet(folder, answers=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "first.example"])
def test_this_machine_and_names_are_not_looked_up(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    looked_up: list[str] = []
    monkeypatch.setattr(socket, "gethostbyaddr", looked_up.append)
    hostnames.stop_slow_lookups(address)
    assert looked_up == []


@pytest.mark.parametrize(
    ("address", "asked"), [("10.0.0.7", "::ffff:10.0.0.7"), ("fd00::7", "fd00::7")], ids=["IPv4", "IPv6"]
)
def test_the_look_up_is_that_of_torch(monkeypatch: pytest.MonkeyPatch, address: str, asked: str) -> None:
    """torch's sockets are of IPv6. /etc/hosts, which names the address of a pod, does not answer for a mapped one."""
    looked_up: list[str] = []
    monkeypatch.setattr(socket, "gethostbyaddr", looked_up.append)
    hostnames.stop_slow_lookups(address)
    assert looked_up == [asked]
