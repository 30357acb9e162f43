"""One HTML page with a whole comparison: the table, the charts, the settings. It loads nothing."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence

from oarlock.simulator.outcomes import outcome
from oarlock.simulator.reports import comparison

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2430; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .25rem .9rem; border-bottom: 1px solid #d8dde5; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
details { margin: 1rem 0; }
code { font-size: .9em; }
"""


def render(title: str, results: Sequence[outcome.Result], pictures: Mapping[str, bytes]) -> str:
    """Return the page. `pictures` has each chart by its title."""
    titles, lines = comparison.table(results)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(title)}</h1>",
        _table([titles, *lines]),
    ]
    for above, picture in pictures.items():
        encoded = base64.b64encode(picture).decode()
        parts.append(f'<h2>{_text(above)}</h2><img alt="{_text(above)}" src="data:image/png;base64,{encoded}">')
    parts.append("<h2>Settings</h2>")
    for result in results:
        settings = [["", ""], *([name, value] for name, value in result.outcome.settings.items())]
        parts.append(f"<details><summary>{_text(result.outcome.run)}</summary>{_table(settings)}</details>")
    return "\n".join([*parts, "</body></html>", ""])


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *body = lines
    drawn = ["<tr>" + "".join(f"<th>{_text(cell)}</th>" for cell in head) + "</tr>"]
    drawn += ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in line) + "</tr>" for line in body]
    return "<table>" + "\n".join(drawn) + "</table>"


def _text(value: str) -> str:
    return html.escape(value)
