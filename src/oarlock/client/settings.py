"""Settings of the client: home, server and token.

They come from flags, then from OARLOCK_* variables, then from `$OARLOCK_HOME/config.toml`, then from `oarlock login`. A
program reads the environment once (`from_environment`). Where none of these names a server, `oarlock.client.places`
finds the local server of the home.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from oarlock.spec import errors
from oarlock.spec.input import quantities

DEFAULT_HOME = "~/.oarlock"
DEFAULT_SNAPSHOT_LIMIT = "100M"
CONFIG_FILE = "config.toml"
LOGIN_FILE = "login.json"
_OF_A_SERVER = ("token", "ca_file")


class ClientTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table `[client]` of config.toml. Each field is also a variable: OARLOCK_SERVER, OARLOCK_TOKEN and so on."""

    server: str | None = None  # base URL; without it: the local server of this home
    token: str | None = None
    ca_file: str | None = None  # PEM of the authority that signed the server's certificate; else the system's
    snapshot_limit: str | int | None = None  # the largest code snapshot that is sent: 100M


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a client. `named` is the setting that names the server, such as `OARLOCK_SERVER`, else empty."""

    home: Path
    server: str | None = None
    token: str | None = None
    ca_file: str | None = None
    snapshot_limit_bytes: int = 100 * 10**6
    named: str = ""


def home_directory(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("OARLOCK_HOME") or DEFAULT_HOME).expanduser().absolute()


def from_environment(**flags: str | int | None) -> Settings:
    """Return the settings from flags and this process's environment."""
    return resolve(os.environ, flags)


def resolve(environ: Mapping[str, str], flags: Mapping[str, str | int | None]) -> Settings:
    """Return each setting from the first place that has it. Raises InvalidInput for an invalid file or value."""
    home = home_directory(environ)
    variables = {name: environ.get(f"OARLOCK_{name.upper()}") or None for name in ClientTable.__struct_fields__}
    table = msgspec.structs.asdict(read_config(home / CONFIG_FILE))
    login = read_login(home / LOGIN_FILE)
    places: list[tuple[str, Mapping[str, str | int | None]]] = [
        ("--server", flags),
        ("OARLOCK_SERVER", variables),
        (str(home / CONFIG_FILE), table),
        (str(home / LOGIN_FILE), {"server": login.server, "token": login.token, "ca_file": login.ca_file}),
    ]
    found: dict[str, str | int] = {}
    named = ""
    for place, values in places:
        for field in ClientTable.__struct_fields__:
            value = values.get(field)
            if value is None or field in found:
                continue
            if field in _OF_A_SERVER and not _same(values.get("server"), found.get("server")):
                continue  # a token is only for the server that it was stored with
            found[field] = value
            named = place if field == "server" else named
    limit = found.get("snapshot_limit", DEFAULT_SNAPSHOT_LIMIT)
    return Settings(
        home=home,
        server=_url(str(found["server"]), named) if "server" in found else None,
        token=str(found["token"]).strip() if "token" in found else None,
        ca_file=str(found["ca_file"]) if "ca_file" in found else None,
        snapshot_limit_bytes=_limit(limit),
        named=named,
    )


def _same(own: str | int | None, meant: str | int | None) -> bool:
    """Return whether a place's token is for the server `meant`: the place names this server, or none (`own`)."""
    return own is None or str(own).strip().rstrip("/") == str(meant).strip().rstrip("/")


class Login(msgspec.Struct, frozen=True):
    """The content of `login.json`, readable by its owner only: the server of `oarlock login` and its token."""

    server: str | None = None
    token: str | None = None
    ca_file: str | None = None


def read_config(path: Path) -> ClientTable:
    """Return the table `[client]` of the file. The other tables are for the server."""
    raw = _text(path)
    if raw is None:
        return ClientTable()
    import tomllib

    try:
        return msgspec.convert(tomllib.loads(raw).get("client", {}), ClientTable)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise errors.InvalidInput(
            f"{path} cannot be used: {error}",
            hint=f"The table [client] may have {', '.join(ClientTable.__struct_fields__)}.",
        ) from error


def read_login(path: Path) -> Login:
    """Return the stored login, empty where there is none. Raises InvalidInput."""
    raw = _text(path)
    if raw is None:
        return Login()
    try:
        return msgspec.json.decode(raw, type=Login)
    except msgspec.DecodeError as error:
        raise errors.InvalidInput(
            f"{path} cannot be used: {error}", hint="Log in again: oarlock login URL, or delete the file."
        ) from error


def write_login(path: Path, login: Login) -> None:
    """Store a login as a whole, in a file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({name: value for name, value in msgspec.structs.asdict(login).items() if value}, file)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise errors.Unavailable(f"{path} cannot be written: {error.strerror}", hint="Check the directory.") from error


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise errors.InvalidInput(
            f"{path} cannot be read: {errors.words(error)}", hint="Check the file and its rights."
        ) from error


def _url(text: str, named: str) -> str:
    url = text.strip()
    if "://" not in url:
        url = f"http://{url}"
    scheme, _, rest = url.partition("://")
    rest = rest.rstrip("/")
    if scheme not in ("http", "https") or not rest or any(letter.isspace() or ord(letter) < 32 for letter in rest):
        raise errors.InvalidInput(
            f"{text!r} is not a valid URL of a server",
            path=named,
            hint="Write it as http://127.0.0.1:7317 or https://HOST.",
        )
    return f"{scheme}://{rest}"


def _limit(value: str | int) -> int:
    try:
        return quantities.memory_bytes(int(value) if isinstance(value, str) and value.isdigit() else value)
    except errors.InvalidInput as error:
        error.path = "snapshot_limit"
        raise
