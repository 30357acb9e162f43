"""The endpoint of a path, found at once. Starlette's router tries one pattern after the other.

With all routes of the API that took a quarter of the time of a short request. Paths of one length with parameters in
the same places have one look-up, and there are few such forms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

E = TypeVar("E")
_SEGMENT = re.compile(r"[^{}:]*|\{\w+\}")


class Found(NamedTuple, Generic[E]):
    endpoint: E
    parameters: dict[str, str]


class PathTable(Generic[E]):
    """Endpoints by their paths. A parameter is a whole segment, such as `{job}`, and is never empty.

    Where several paths match, the first one counts. Raises ValueError for a path with a parameter of another form.
    """

    def __init__(self, endpoints: Mapping[str, E]) -> None:
        self._forms: dict[int, dict[tuple[int, ...], dict[tuple[str, ...], tuple[int, str]]]] = {}
        self._endpoints = list(endpoints.values())
        for number, path in enumerate(endpoints):
            segments = path.split("/")
            for one in segments:
                if not _SEGMENT.fullmatch(one):
                    raise ValueError(f"{path}: `{one}` is not a segment of the table. Write a text or `{{name}}`.")
            places = tuple(place for place, one in enumerate(segments) if one.startswith("{"))
            form = self._forms.setdefault(len(segments), {}).setdefault(places, {})
            form.setdefault(_masked(segments, places), (number, path))

    def find(self, path: str) -> Found[E] | None:
        segments = path.split("/")
        found: tuple[int, str] | None = None
        for places, form in self._forms.get(len(segments), {}).items():
            one = form.get(_masked(segments, places))
            if one is not None and all(segments[place] for place in places) and (found is None or one < found):
                found = one
        if found is None:
            return None
        number, template = found
        names = template.split("/")
        parameters = {name[1:-1]: segments[at] for at, name in enumerate(names) if name.startswith("{")}
        return Found(self._endpoints[number], parameters)


def _masked(segments: list[str], places: tuple[int, ...]) -> tuple[str, ...]:
    """Return the segments, with `{}` in the places of parameters."""
    masked = segments.copy()
    for place in places:
        masked[place] = "{}"
    return tuple(masked)
