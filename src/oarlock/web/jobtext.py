"""The text of a job file: the line on which a field stands, and the text with another value of one field.

The form and the editor of the page `submit` change one text. A change keeps the comments and the order of the rest.
Pure.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import yaml

from oarlock.spec import errors
from oarlock.spec.input import validation

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_WIDE = 1 << 20


def steps(path: str) -> list[str | int]:
    """Return the names and places of a path: `data[0].mount` is `data`, 0, `mount`."""
    return [name or int(place) for name, place in _STEP.findall(path)]


def line_of(text: str, path: str) -> int:
    """Return the line of the field, from 1; the line of the nearest field above it where it is missing; 0 for none."""
    node, line = _composed(text), 0
    for step in steps(path):
        if isinstance(node, yaml.MappingNode):
            found = next((pair for pair in node.value if pair[0].value == step), None)
            if found is None:
                return line
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def value_at(raw: Any, path: str) -> Any:
    """Return the value of a field of plain objects, None where it is missing."""
    for step in steps(path):
        if isinstance(raw, Mapping):
            raw = raw.get(step)
        else:
            return None
    return raw


def with_value(text: str, path: str, value: Any) -> str:
    """Return the text with another value of a field, as `changed` does."""
    return changed(text, validation.mapping(validation.plain(text) or {}), path, value)[0]


def changed(text: str, raw: dict[str, Any], path: str, value: Any) -> tuple[str, dict[str, Any]]:
    """Return the text with another value of a field, without the field for None, and its plain objects.

    `raw` has the plain objects of `text`. Where the place of the field cannot be changed alone, the whole text is
    written anew, without its comments.
    """
    if value_at(raw, path) == value:
        return text, raw
    names = [str(step) for step in steps(path)]
    wanted = copy.deepcopy(raw)
    _set(wanted, names, value)
    edited = _edited(text, names, value, wanted)
    try:
        if edited is not None and validation.plain(edited) == wanted:
            return edited, wanted
    except errors.OarlockError:
        pass
    return yaml.safe_dump(wanted, sort_keys=False, width=_WIDE, allow_unicode=True), wanted


def _composed(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _set(raw: dict[str, Any], names: list[str], value: Any) -> None:
    *outer, last = names
    above: list[tuple[dict[str, Any], str]] = []
    for name in outer:
        if not isinstance(raw.get(name), dict):
            raw[name] = {}
        above.append((raw, name))
        raw = raw[name]
    if value is not None:
        raw[last] = value
        return
    raw.pop(last, None)
    for place, name in reversed(above):
        if not place[name]:
            del place[name]


def _edited(text: str, names: list[str], value: Any, wanted: dict[str, Any]) -> str | None:
    """Return the text with the one change in place, None where it has no place of its own."""
    node = _composed(text)
    if node is None:
        return None if value is None else f"{_separated(text)}{names[0]}: {_written(_nested(names[1:], value))}\n"
    if not isinstance(node, yaml.MappingNode):
        return None
    for depth, name in enumerate(names):
        if node.flow_style:
            return _replaced(text, node, value_at(wanted, ".".join(names[:depth])))
        found = next((pair for pair in node.value if pair[0].value == name), None)
        if found is None:
            return None if value is None else _inserted(text, node, name, _nested(names[depth + 1 :], value))
        key, inner = found
        if depth == len(names) - 1:
            return _without(text, key, inner) if value is None else _replaced(text, inner, value)
        if not isinstance(inner, yaml.MappingNode):
            return None
        node = inner
    return None


def _replaced(text: str, node: yaml.Node, value: Any) -> str | None:
    """Return the text with another value in the place of the node, which must end on its own line."""
    if value is None or (isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")):
        return None
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        return None
    space = "" if start == 0 or text[start - 1].isspace() else " "
    return f"{text[:start]}{space}{_written(value)}{text[end:]}"


def _inserted(text: str, node: yaml.MappingNode, name: str, value: Any) -> str | None:
    if not node.value:
        return None
    last: yaml.Node = node.value[-1][1]
    while isinstance(last, yaml.CollectionNode) and not last.flow_style and last.value:
        inner = last.value[-1]
        last = inner[1] if isinstance(inner, tuple) else inner
    at = last.end_mark.index
    if last.end_mark.column or at == last.start_mark.index:  # else it ends where the next line begins
        line_end = text.find("\n", at)
        at = len(text) if line_end < 0 else line_end + 1
    indent = " " * int(node.value[0][0].start_mark.column)
    return f"{_separated(text[:at])}{indent}{name}: {_written(value)}\n{text[at:]}"


def _without(text: str, key: yaml.Node, value: yaml.Node) -> str:
    begin = text.rfind("\n", 0, key.start_mark.index) + 1
    end = max(value.end_mark.index, key.end_mark.index)
    if value.end_mark.column or end == key.end_mark.index:
        line_end = text.find("\n", end)
        end = len(text) if line_end < 0 else line_end + 1
    return text[:begin] + text[end:]


def _separated(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _nested(names: list[str], value: Any) -> Any:
    for name in reversed(names):
        value = {name: value}
    return value


def _written(value: Any) -> str:
    """Return the value on one line of YAML."""
    text = str(yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=_WIDE, allow_unicode=True))
    return text.removesuffix("\n").removesuffix("\n...")
