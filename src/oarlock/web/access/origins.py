"""The rules for requests of browsers: which host names they may use, and which sites they may come from.

A cookie says which browser sends a request, and not which page made it do so. Another port of 127.0.0.1 counts as the
same site, so SameSite alone does not keep its pages out. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from oarlock.spec import errors
from oarlock.spec.access import hosts

SAFE = frozenset({"GET", "HEAD"})


def check_host(host: str, known: frozenset[str] | None) -> None:
    """Refuse another name of this machine (DNS rebinding). None allows every name."""
    if known is not None and hosts.name(host) not in known:
        raise errors.Forbidden("The Host header does not name this server.", hint=f"Use {' or '.join(sorted(known))}.")


def check_origin(headers: Mapping[str, str]) -> None:
    """Refuse a request that no page of ours has sent: for unsafe methods and streams.

    One of `Origin` and `Sec-Fetch-Site` must say that it is ours, and none may say otherwise.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and hosts.of_origin(origin) != headers.get("host", ""):
        raise _foreign()
    if site is not None and site != "same-origin":
        raise _foreign()
    if origin is None and site is None:
        raise errors.Forbidden(
            "The request does not say which page it comes from.", hint="Use a present browser, or the REST API."
        )


def from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Return whether a link of another site led here: the browser sends no strict cookie then."""
    return headers.get("sec-fetch-site") in ("cross-site", "same-site")


def local_path(wanted: str) -> str:
    """Return a path of this server to go to, `/` for anything that could lead elsewhere."""
    plain = wanted.isprintable() and "\\" not in wanted
    return wanted if plain and wanted.startswith("/") and not wanted.startswith("//") else "/"


def _foreign() -> errors.Forbidden:
    return errors.Forbidden(
        "The request comes from a page of another site, which is not allowed.", hint="Open the page of this server."
    )
