"""The HTTP proxy on the way to an API server, as `kubectl` finds it: HTTPS_PROXY and NO_PROXY by the rules of Go.

A host of this machine is never asked for through a proxy. NO_PROXY lists hosts, domains, addresses and networks. The
readers of these variables in Python's standard library and in aiohttp know no networks, and send requests for loopback
addresses to the proxy. Source: golang.org/x/net/http/httpproxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from oarlock.spec import errors

SCHEMES = {"http": 80, "https": 443}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def of(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy for requests to `url`, or None. Raises InvalidInput for one that speaks no HTTP."""
    parts = _parts(url)
    name = f"{parts.scheme}_proxy"
    said = _value(environ, name)
    if not said or _is_direct(parts.hostname or "", _port(parts), _value(environ, "no_proxy")):
        return None
    return checked(said if "://" in said else f"http://{said}", name.upper())


def checked(proxy: str, name: str) -> str:
    """Return the URL of a proxy, which `name` sets. Raises InvalidInput where it cannot be used.

    The message does not repeat it: it may have a password.
    """
    parts = _parts(proxy)
    if parts.scheme not in SCHEMES or not parts.hostname or not _port(parts):
        wrong = "it is not http:// or https:// with a host and a port"
    elif parts.path not in ("", "/") or parts.query or parts.fragment:
        wrong = "something follows its host and port"
    elif parts.username is not None and parts.password is None:
        wrong = "it has a user without a password"
    else:
        return proxy
    raise errors.InvalidInput(
        f"{name} names a proxy that cannot be used: {wrong}.",
        hint="Name an HTTP proxy, as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT.",
    )


def _parts(url: str) -> SplitResult:
    """Return the parts of the URL; all are empty where it is not one."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _port(parts: SplitResult) -> int:
    """Return the port, by default that of the scheme; 0 where it is not a port."""
    try:
        return SCHEMES.get(parts.scheme, 0) if parts.port is None else parts.port
    except ValueError:
        return 0


def _value(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name, "")


def _is_direct(host: str, port: int, listed: str) -> bool:
    """Return whether the host is asked without a proxy: it is this machine, or in the list of NO_PROXY."""
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_covers(entry.strip().lower(), host, port, address) for entry in listed.split(","))


def _covers(entry: str, host: str, port: int, address: Address | None) -> bool:
    """Return whether one entry of NO_PROXY names the host, which has this address if it is one."""
    if entry == "*":
        return True
    if "/" in entry:
        return address is not None and _is_in(address, entry)
    name, its_port = _divided(entry)
    if not name or (its_port and its_port != str(port)):
        return False
    if (its_address := _address(name)) is not None:
        return its_address == address
    domain = name.removeprefix("*")
    return host == domain or host.endswith(domain if domain.startswith(".") else f".{domain}")


def _divided(entry: str) -> tuple[str, str]:
    """Return host and port of an entry; the port is empty where there is none."""
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    if entry.count(":") == 1:
        name, _, port = entry.partition(":")
        return name, port
    return entry, ""


def _is_in(address: Address, network: str) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
