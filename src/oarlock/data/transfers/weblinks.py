"""Files from http and https. Every host is resolved once, its address is checked, and the connection uses that address.

Link-local addresses are refused, because a cloud's metadata service gives out credentials there. A private address is
refused if a public server redirects to it. An interrupted download continues if the server confirms that the file has
not changed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

from oarlock.data.transfers import patience, places
from oarlock.spec import errors

if TYPE_CHECKING:
    import httpx

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_REDIRECTS = 10
METADATA = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "fd00:ec2::254", "192.0.0.192")))
"""Metadata services outside of the link-local range."""
_AGAIN = frozenset({408, 425, 429})


def listing(url: str) -> places.Listing:
    if urlsplit(url).path.endswith("/"):
        raise errors.InvalidInput(
            f"{url} is a directory, and http cannot list one",
            hint="name each file as a separate source",
            path="source",
        )
    name = PurePosixPath(unquote(urlsplit(url).path)).name or "download"
    with Client() as client, client.ask("HEAD", url) as head:
        answer = head
    if answer.status_code in (403, 405, 501):  # some servers sign or allow only GET
        with Client() as client, client.ask("GET", url) as got:
            answer = got
    check(url, answer)
    length = answer.headers.get("content-length")
    version = answer.headers.get("etag") or answer.headers.get("last-modified") or ""
    size = int(length) if length is not None and length.isdecimal() else None
    return places.Listing((places.Item(name, url, size, version),), single=True)


def fetch(item: places.Item, target: Path, moved: Callable[[int], None], waiting: patience.Patience) -> None:
    """Fetch the file into `target`, after the bytes already there. Tell `moved` each number of new bytes.

    GivenUp as in `patience`. A download that makes progress may be interrupted any number of times.
    """

    def attempt() -> None:
        with places.foreign(item.path):
            attempted(item, target, lambda place: moved(waiting.moved(place)))

    patience.tried(attempt, waiting)


def attempted(item: places.Item, target: Path, reached: Callable[[int], None]) -> None:
    """Fetch the file once. Tell `reached` each place in the file that the download has come to."""
    there = target.stat().st_size if target.exists() else 0
    resumable = item.version.startswith('"') and there > 0
    headers = {"Range": f"bytes={there}-", "If-Range": item.version} if resumable else {}
    with Client() as client, client.ask("GET", item.path, headers) as answer:
        if answer.status_code == 416 and item.size == there:
            return
        check(item.path, answer)
        goes_on = answer.status_code == 206
        with target.open("ab" if goes_on else "wb") as file:
            for block in answer.iter_raw():
                file.write(block)
                reached(file.tell())
    if item.size is not None and target.stat().st_size != item.size:
        raise errors.Unavailable(
            f"{item.path} ended after {target.stat().st_size:,} of {item.size:,} bytes", hint="try again"
        )


def check(url: str, answer: httpx.Response) -> None:
    status = answer.status_code
    if status in (404, 410):
        raise errors.NotFound(f"there is nothing at {url} (status {status})", hint="check the URL")
    if status in (401, 403):
        raise errors.Forbidden(
            f"{url} may not be read (status {status})",
            hint="use a URL that contains the permission, such as a signed one",
        )
    if status not in (200, 206):
        kind = errors.Unavailable if status in _AGAIN or status >= 500 else errors.GivenUp
        raise kind(f"{url} answered with status {status}", hint="try again later")


class Client:
    """A client for one request and its redirects."""

    def __enter__(self) -> Client:
        import httpx

        self._client = httpx.Client(timeout=httpx.Timeout(30.0), headers={"Accept-Encoding": "identity"})
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @contextlib.contextmanager
    def ask(self, method: str, url: str, headers: dict[str, str] | None = None) -> Iterator[httpx.Response]:
        """Send the request and follow redirects. Each address is checked before the request."""
        asked = url
        from_public = False
        for _ in range(MAX_REDIRECTS):
            request, public = self._request(method, asked, headers or {}, from_public=from_public)
            with places.foreign(url):
                answer = self._client.send(request, stream=True)
            try:
                following = answer.headers.get("location") if answer.is_redirect else None
                if following is None:
                    yield answer
                    return
            finally:
                answer.close()
            from_public = from_public or public
            asked = urljoin(asked, following)
        raise errors.GivenUp(f"{url} redirects without end", hint="check the URL")

    def _request(
        self, method: str, url: str, headers: dict[str, str], *, from_public: bool
    ) -> tuple[httpx.Request, bool]:
        """Return a request to the checked address, with the host's name, and whether the address is public."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise errors.InvalidInput(f"{url!r} is not an http or https URL", hint="check the redirect of the source")
        if proxied(url):
            # The proxy resolves the name, so only a numeric address can be checked here.
            with contextlib.suppress(ValueError):
                check_address(url, ipaddress.ip_address(parts.hostname), from_public=from_public)
            return self._client.build_request(method, url, headers=headers), True
        address = resolved(url, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
        check_address(url, address, from_public=from_public)
        host = f"[{address}]" if address.version == 6 else str(address)
        pinned = parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host).geturl()
        user = parts.netloc.rpartition("@")[0]
        request = self._client.build_request(
            method,
            pinned if not user else pinned.replace("://", f"://{user}@", 1),
            headers={**headers, "Host": parts.netloc.rpartition("@")[2]},
            extensions={"sni_hostname": parts.hostname},
        )
        return request, is_public(address)


def proxied(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.hostname or "")


def resolved(url: str, host: str, port: int) -> Address:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise errors.Unavailable(
            f"{url}: there is no address for {host} ({errors.words(error)})", hint="check the URL"
        ) from error
    # All addresses are checked: one bad address among good ones is an attack. IPv4 comes first: it works more often.
    addresses = sorted((ipaddress.ip_address(one[4][0]) for one in found), key=lambda address: address.version)
    for address in addresses:
        check_address(url, address, from_public=False)
    return addresses[0]


def check_address(url: str, address: Address, *, from_public: bool) -> None:
    """Raise Forbidden for an address that cannot be that of a data set."""
    plain = getattr(address, "ipv4_mapped", None) or address
    if plain.is_link_local or plain.is_multicast or plain.is_unspecified or plain in METADATA:
        raise errors.Forbidden(f"{url} leads to {address}, a link-local or metadata address", hint="use another source")
    if from_public and not is_public(address):
        raise errors.Forbidden(
            f"a public server redirects to {url}, at the private address {address}", hint="name that URL as the source"
        )


def is_public(address: Address) -> bool:
    plain = getattr(address, "ipv4_mapped", None) or address
    return bool(plain.is_global)
