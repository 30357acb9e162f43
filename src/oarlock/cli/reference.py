"""The reference part of docs/cli.md, made from the commands: `python -m oarlock.cli.reference docs/cli.md`.

A test fails if the page is out of date.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from oarlock.cli import command as forms
from oarlock.cli import main

BEGIN = "<!-- made by `python -m oarlock.cli.reference docs/cli.md` -->"
END = "<!-- end -->"


def text() -> str:
    """Return every command by section, with its usage and its options, as Markdown."""
    context = click.Context(main.root, info_name="oarlock")
    lines: list[str] = []
    for section, verbs in main.SECTIONS.items():
        lines += ["", f"## {section}"]
        for verb in verbs:
            command = main.root.get_command(context, verb)
            assert command is not None  # the table names it
            lines += _command(command, f"oarlock {verb}", context)
    return "\n".join(lines).strip() + "\n"


def _command(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    yield from ("", f"### `{name}`", "")
    if isinstance(command, click.Group):
        yield inspect.cleandoc(command.help or "")
        for inner, child in command.commands.items():
            yield from _command(child, f"{name} {inner}", context)
        return
    pieces = " ".join(command.collect_usage_pieces(context))
    yield from ("```text", f"{name} {pieces}", "```", "", inspect.cleandoc(command.help or ""))
    if command.epilog:
        yield from ("", command.epilog)
    options = [record for param in command.params for record in [_option(param, context)] if record is not None]
    if options:
        yield from ("", "| option | meaning |", "|---|---|")
        for names, meaning in options:
            yield f"| `{_cell(names)}` | {_cell(meaning)} |"


def _option(param: click.Parameter, context: click.Context) -> tuple[str, str] | None:
    if not isinstance(param, click.Option) or getattr(param, "section", "") == forms.SERVER_SECTION:
        return None  # the page describes the shared options once
    return param.get_help_record(context)


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")


def renewed(page: str) -> str:
    """Return `page` with a new part between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text()}\n{END}{after}"


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(renewed(place.read_text(encoding="utf-8")), encoding="utf-8")
