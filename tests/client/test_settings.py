"""Flags before variables before config.toml before login.json; and where the local server is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oarlock.client import places, settings
from oarlock.spec import errors


def told(home: Path, flags: dict[str, str | int | None] | None = None, **variables: str) -> settings.Settings:
    return settings.resolve({"OARLOCK_HOME": str(home), **variables}, flags or {})


def write(home: Path, name: str, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / name).write_text(text)


def test_each_place_goes_before_the_next(home: Path) -> None:
    settings.write_login(home / "login.json", settings.Login("http://login", "login-token"))
    assert (told(home).server, told(home).token) == ("http://login", "login-token")
    write(home, "config.toml", '[client]\nserver = "http://config"\n[server]\nport = 1\nanything = 2\n')
    assert told(home).server == "http://config"
    assert told(home, OARLOCK_SERVER="http://variable").server == "http://variable"
    found = told(home, {"server": "http://flag"}, OARLOCK_SERVER="http://variable")
    assert (found.server, found.named) == ("http://flag", "--server")


def test_a_stored_token_goes_to_the_server_it_was_given_for_and_to_no_other(home: Path) -> None:
    settings.write_login(home / "login.json", settings.Login("http://login", "login-token"))
    assert told(home, OARLOCK_SERVER="http://elsewhere").token is None
    assert told(home, OARLOCK_SERVER="http://elsewhere", OARLOCK_TOKEN="t").token == "t"
    write(home, "config.toml", '[client]\nserver = "http://config/"\ntoken = "config-token"\nca_file = "ca.pem"\n')
    found = told(home, {"server": "http://elsewhere"})
    assert (found.token, found.ca_file) == (None, None)
    found = told(home, {"server": "http://config"})
    assert (found.token, found.ca_file) == ("config-token", "ca.pem")
    assert told(home, {"server": "http://elsewhere"}, OARLOCK_SERVER="http://variable", OARLOCK_TOKEN="t").token is None
    assert told(home, {"server": "http://elsewhere"}, OARLOCK_TOKEN="t").token == "t", "it names no server of its own"
    assert told(home, {"server": "http://elsewhere", "token": "u"}, OARLOCK_TOKEN="t").token == "u"


def test_a_login_is_readable_by_its_owner_only(home: Path) -> None:
    old = os.umask(0)
    try:
        settings.write_login(home / "login.json", settings.Login("http://login", "secret"))
    finally:
        os.umask(old)
    assert (home / "login.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.toml", "[client]\nsever = 'x'\n", "server"),
        ("config.toml", "[client\n", "config.toml"),
        ("config.toml", "[client]\nserver = 7\n", "server"),
        ("login.json", "{", "login.json"),
    ],
)
def test_a_damaged_file_is_named(home: Path, name: str, text: str, said: str) -> None:
    write(home, name, text)
    with pytest.raises(errors.InvalidInput, match=name) as raised:
        told(home)
    assert said in str(raised.value)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a b", "http://x\n"])
def test_a_text_that_is_not_a_url_is_refused(home: Path, url: str) -> None:
    if url.strip() == "http://x":
        assert told(home, {"server": url}).server == "http://x"
        return
    with pytest.raises(errors.InvalidInput, match="URL"):
        told(home, {"server": url})


def test_a_snapshot_limit_is_a_quantity(home: Path) -> None:
    assert told(home, OARLOCK_SNAPSHOT_LIMIT="2M").snapshot_limit_bytes == 2_000_000
    assert told(home).snapshot_limit_bytes == 100_000_000
    with pytest.raises(errors.InvalidInput, match="snapshot_limit"):
        told(home, OARLOCK_SNAPSHOT_LIMIT="much")


def test_a_local_server_is_found_by_its_file_and_token(home: Path) -> None:
    with pytest.raises(errors.ServerNotFound, match="oarlock up"):
        places.find(told(home))
    write(home, "server.json", '{"url": "http://127.0.0.1:7", "pid": 1, "new_field": true}')
    write(home, "token", "abc\n")
    place = places.find(told(home))
    assert (place.url, place.token, place.local, place.loopback) == ("http://127.0.0.1:7", "abc", True, True)


def test_loopback_is_this_machine_only() -> None:
    def loopback(url: str) -> bool:
        return places.Place(url=url, token=None).loopback

    assert all(map(loopback, ["http://127.0.0.1:1", "http://localhost", "http://[::1]:5", "https://127.9.9.9"]))
    assert not any(map(loopback, ["http://127.example.org", "http://localhost.evil.org", "http://10.0.0.1"]))
