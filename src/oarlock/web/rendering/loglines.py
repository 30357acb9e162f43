"""A line of a log as a row of HTML, with a link to itself.

A page of a log has a thousand rows, and a template takes several times as long for them. Every text of a user passes
`texts.escaped` here, as each value of a template does.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from oarlock.web.rendering import templating, texts

Part = tuple[str, str, bool]
"""Text in one style, its classes of the style sheet, and whether it is what was searched for."""


def row(
    address: str, classes: str, to: str, at: float, origin: str | int, tasks: str, count: int, parts: Iterable[Part]
) -> str:
    """Return one row. `to` is the beginning of its link, `origin` its task or its offset, and `tasks` those that it
    counts.
    """
    place = texts.escaped(address)
    asked = place.replace(":", "%3A")
    moment, clock = _times(at)
    several = f'<b title="{texts.escaped(tasks)}">×{count}</b>' if count > 1 else ""
    style = f' class="{classes}"' if classes else ""
    time, source = f'<time datetime="{moment}">{clock}</time>', texts.escaped(str(origin))
    link = f'<a href="{texts.escaped(to)}{asked}#{place}">{time} {source}</a>'
    return f'<li id="{place}"{style}>{link}{several}<code>{"".join(map(_part, parts))}</code></li>\n'


def _part(part: Part) -> str:
    text, classes, hit = part
    if hit:
        return f"<mark>{texts.escaped(text)}</mark>"
    return f'<span class="{classes}">{texts.escaped(text)}</span>' if classes else texts.escaped(text)


@functools.lru_cache(maxsize=1000)
def _times(at: float) -> tuple[str, str]:
    """Return the moment and the time of day: many lines arrive together."""
    return templating.moment(at), templating.clock(at)
