"""The form that all verbs share: options in sections, the same words for the same options, a client that is made when
it is first needed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oarlock.spec import errors, suggestions

if TYPE_CHECKING:
    from oarlock.client.synchronous import client as clients

F = TypeVar("F", bound=Callable[..., Any])

SERVER_SECTION = "Server"


class Option(click.Option):
    """An option that knows under which heading of `--help` it stands."""

    def __init__(self, *args: Any, section: str = "Options", **named: Any) -> None:
        super().__init__(*args, **named)
        self.section = section


class Command(click.Command):
    """`--help` by sections; options end where the first word of a user's command begins."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for name in sorted(sections, key=lambda name: (name == SERVER_SECTION, name == "Options")):
            with formatter.section(name):
                formatter.write_dl(sections[name])


class Group(click.Group):
    """A verb with verbs below it. `elsewhere` is the hint for a word that is none of them."""

    def __init__(self, *args: Any, elsewhere: str = "", **named: Any) -> None:
        super().__init__(*args, **named)
        self.elsewhere = elsewhere

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in self.commands and not ctx.resilient_parsing and not word.startswith("-"):
            near = suggestions.nearest(word, self.commands)
            hint = f"Did you mean `{ctx.command_path} {near}`?\n" if near else ""
            hint += self.elsewhere or f"`{ctx.command_path} --help` lists the verbs."
            raise errors.InvalidInput(f"`{ctx.command_path}` has no verb {word[:60]!r}", hint=hint)
        return super().resolve_command(ctx, args)


def group(name: str, **settings: Any) -> Callable[[Callable[..., Any]], click.Group]:
    context = {"help_option_names": ["-h", "--help"]}
    return click.group(name, cls=Group, context_settings=context, no_args_is_help=True, **settings)


def verb(name: str, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    context = {"help_option_names": ["-h", "--help"], "max_content_width": 100, **settings.pop("context_settings", {})}
    return click.command(name, cls=Command, context_settings=context, **settings)


def option(*names: str, section: str = "Options", **settings: Any) -> Callable[[F], F]:
    return click.option(*names, cls=Option, section=section, **settings)


def json_option(function: F) -> F:
    return option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def job_argument(function: F) -> F:
    return click.argument("job", shell_complete=complete_jobs)(function)


def jobs_argument(function: F) -> F:
    return click.argument("jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=complete_jobs)(function)


def server_options(function: F) -> F:
    """`--server` and `--token`, as arguments of those names."""
    for names, help_text in (
        (("--token",), "Its token. Better in OARLOCK_TOKEN: others can see arguments."),
        (("--server",), "URL of the server. Without it: OARLOCK_SERVER, config.toml, or the local one."),
    ):
        function = option(*names, section=SERVER_SECTION, metavar=names[0][2:].upper(), help=help_text)(function)
    return function


def connected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the verb a `client` in the place of `--server` and `--token`."""

    @functools.wraps(function)
    def call(*args: Any, server: str | None, token: str | None, **named: Any) -> Any:
        with open_client(server, token) as client:
            return function(client, *args, **named)

    return server_options(call)


def open_client(
    server: str | None = None, token: str | None = None, *, timeout_s: float = 30.0, **others: str | None
) -> clients.Client:
    """A client of the server that flags and settings name. Nothing is sent yet."""
    from oarlock.client import settings
    from oarlock.client.synchronous import client as clients

    _leave_out_httpx_command_line()
    told = settings.from_environment(server=server, token=token, **others)
    return clients.Client(told=told, timeout_s=timeout_s)


def _leave_out_httpx_command_line() -> None:
    """httpx imports a command line of its own, with rich and pygments: 40 ms, as much as all the rest of it. It does
    without where that cannot be imported.
    """
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # how Python spells "cannot be imported"


def complete_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Names of jobs that begin so, newest first. Silent whatever happens: a shell waits for it."""
    from click.shell_completion import CompletionItem

    try:
        given = ctx.params
        with open_client(given.get("server"), given.get("token"), timeout_s=1.0) as client:
            found = client.jobs(limit=100)
    except Exception:  # noqa: BLE001 - a completion that fails offers nothing
        return []
    names = dict.fromkeys((job.name, job.phase) for job in found if job.name.startswith(incomplete))
    return [CompletionItem(name, help=str(phase).lower()) for name, phase in names]
