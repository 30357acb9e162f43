"""Small parts of pages that templates and rows share. Each is made of numbers and of our own words alone."""

from __future__ import annotations

import markupsafe

from oarlock.display import marks

_BAR = (
    '<svg class="progress" role="img" aria-label="{label:.0f}%" width="80" height="8" viewBox="0 0 80 8">'
    '<rect class="open" width="80" height="8"/><rect class="blue" width="{width:.1f}" height="8"/></svg>'
)


def phase(word: str) -> markupsafe.Markup:
    """Return the phase behind its glyph, in its colour."""
    mark = marks.PHASES[word]
    shown = f'<span aria-hidden="true">{mark.glyph}</span> {word}'
    return markupsafe.Markup(f'<span class="phase {mark.colour}">{shown}</span>')


def bar(fraction: float) -> markupsafe.Markup:
    """Return a bar that is filled to this fraction."""
    return markupsafe.Markup(_BAR.format(label=100 * fraction, width=80 * fraction))
