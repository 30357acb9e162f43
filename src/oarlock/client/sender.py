"""Carries requests out, one thread: httpx below, the error tree above.

httpx is imported at the first request, since a wrong flag or `--help` needs none of it. A local server's place is
looked up again whenever no connection comes about.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from oarlock.client import failures, following, places, requests, settings
from oarlock.spec import errors

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
STREAM_PAUSE_S = 75.0
"""A stream that says nothing for so long is opened again: the other machine may be gone without a word."""


class Sender:
    """`sleep` is for tests. Safe to share between threads, as httpx's client is."""

    def __init__(
        self,
        told: settings.Settings,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._told = told
        self._timeout_s = timeout_s
        self._transport = transport
        self._sleep = sleep
        self._place: places.Place | None = None
        self._client: httpx.Client | None = None
        self.server_date: str | None = None  # as the last answer's header says

    @property
    def place(self) -> places.Place:
        """Raises ServerNotFound where no server is named or has left its file."""
        if self._place is None:
            self._place = places.find(self._told)
        return self._place

    def send(self, request: requests.Request[T]) -> T:
        tries = 0
        while True:
            try:
                return self._once(request)
            except errors.OarlockError as failure:
                tries += 1
                pause = failures.pause_s(request, failure, tries)
                if pause is None:
                    raise
                self._sleep(pause)
                if isinstance(failure, failures.Unsent):
                    self.forget_place()

    @contextlib.contextmanager
    def lines(self, request: requests.Request[Any]) -> Iterator[Iterator[bytes]]:
        """The answer's lines as they come. Raises Unsent, Lost (also while they are read), and what the server says."""
        place = self.place
        timeout = (STREAM_PAUSE_S, CONNECT_TIMEOUT_S)
        with translated(place, self._told.named), self._open(place, request, timeout) as response:
            if response.status_code >= 300:
                raise failures.from_response(response.status_code, response.read())
            yield _split(response)

    @contextlib.contextmanager
    def content(self, request: requests.Request[Any]) -> Iterator[tuple[httpx.Response, Iterator[bytes]]]:
        """The answer and its bytes as they come. Raises as `lines` does."""
        place = self.place
        timeout = (STREAM_PAUSE_S, CONNECT_TIMEOUT_S)
        with translated(place, self._told.named), self._open(place, request, timeout) as response:
            if response.status_code >= 300:
                raise failures.from_response(response.status_code, response.read())
            yield response, response.iter_raw()

    def forget_place(self) -> None:
        """A local server may be back on another port."""
        if self._place is not None and self._place.local:
            self._place = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _once(self, request: requests.Request[T]) -> T:
        place = self.place
        with (
            translated(place, self._told.named),
            self._open(place, request, (max(self._timeout_s, request.patience_s), CONNECT_TIMEOUT_S)) as response,
        ):
            body = response.read()
            self.server_date = response.headers.get("date")
            if response.status_code >= 300:
                raise failures.from_response(response.status_code, body)
        return failures.decoded(body, request.answer)

    @contextlib.contextmanager
    def _open(
        self, place: places.Place, request: requests.Request[Any], timeout: tuple[float, float]
    ) -> Iterator[httpx.Response]:
        import httpx

        with contextlib.ExitStack() as stack:
            content: Any = request.content()
            if isinstance(request.upload, bytes):
                content = request.upload
            elif request.upload is not None:
                content = stack.enter_context(request.upload.open("rb"))
            client = self._http(place)
            url = place.url + request.target()
            headers = headers_of(place, request)
            limits = httpx.Timeout(timeout[0], connect=timeout[1])
            yield stack.enter_context(
                client.stream(request.method, url, content=content, headers=headers, timeout=limits)
            )

    def _http(self, place: places.Place) -> httpx.Client:
        if self._client is None:
            import httpx

            self._client = httpx.Client(
                transport=self._transport, trust_env=not place.loopback, verify=trust(place), follow_redirects=False
            )
        return self._client


@contextlib.contextmanager
def translated(place: places.Place, named: str) -> Iterator[None]:
    """httpx's errors as ours."""
    import httpx

    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
        raise failures.unsent(place, named, error) from error
    except (httpx.TransportError, httpx.InvalidURL, httpx.StreamError) as error:
        raise failures.lost(place, error) from error


def headers_of(place: places.Place, request: requests.Request[Any]) -> dict[str, str]:
    headers = {"Accept": "application/json", **request.headers}
    if request.body is not None:
        headers["Content-Type"] = "application/json"
    if place.token is not None:
        headers["Authorization"] = f"Bearer {token_of(place)}"
    return headers


def token_of(place: places.Place) -> str:
    """The token, where it can stand in a header."""
    token = place.token or ""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise errors.Unauthenticated(
            "the token has letters that no token has", hint="Set OARLOCK_TOKEN again, or run `oarlock login URL`."
        )
    return token


def trust(place: places.Place) -> Any:
    """What httpx verifies with. Reading the authorities takes 20 ms, which plain HTTP needs not pay."""
    if not place.url.startswith("https:"):
        return False
    if place.ca_file is None:
        return True
    import ssl

    try:
        return ssl.create_default_context(cafile=place.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise errors.InvalidInput(
            f"{place.ca_file} cannot be used: {errors.words(error)}",
            path="ca_file",
            hint="Name a PEM file of the authority.",
        ) from error


def _split(response: httpx.Response) -> Iterator[bytes]:
    splitter = following.Splitter()
    for chunk in response.iter_bytes():
        yield from splitter.feed(chunk)
