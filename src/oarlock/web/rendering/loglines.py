"""A line of a log as a row of HTML, with a link to itself.

A page of a log has a thousand rows, and a template takes several times as long for them. Every text of a user passes
`_text` here, as each value of a template does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

import markupsafe

from oarlock.web.rendering import templating, texts

_PLAIN = re.compile(r"[\t\n !#-%(-;=?-~]*")
"""Text that HTML shows as it is."""
Part = tuple[str, str, bool]
"""Text in one style, its classes of the style sheet, and whether it is what was searched for."""


def row(
    address: str, classes: str, to: str, at: float, origin: str | int, tasks: str, count: int, parts: Iterable[Part]
) -> str:
    """Return one row. `to` is the beginning of its link, `origin` its task or its offset, and `tasks` those that it
    counts.
    """
    place = _text(address)
    asked = place.replace(":", "%3A")
    moment, clock = _times(at)
    several = f'<b title="{_text(tasks)}">×{count}</b>' if count > 1 else ""
    style = f' class="{classes}"' if classes else ""
    return (
        f'<li id="{place}"{style}><a href="{_text(to)}{asked}#{place}"><time datetime="{moment}">{clock}</time> '
        f"{_text(str(origin))}</a>{several}<code>{''.join(map(_part, parts))}</code></li>\n"
    )


def _part(part: Part) -> str:
    text, classes, hit = part
    if hit:
        return f"<mark>{_text(text)}</mark>"
    return f'<span class="{classes}">{_text(text)}</span>' if classes else _text(text)


def _text(text: str) -> str:
    """Return a text escaped, with the characters shown by their numbers that would hide or reorder it."""
    return text if _PLAIN.fullmatch(text) else str(markupsafe.escape(texts.visible(text)))


@functools.lru_cache(maxsize=1000)
def _times(at: float) -> tuple[str, str]:
    """Return the moment and the time of day: many lines arrive together."""
    return templating.moment(at), templating.clock(at)
