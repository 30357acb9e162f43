"""The form of all commands: options in sections, shared options, and a client that connects at its first request."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oarlock.spec import errors
from oarlock.spec.hints import suggestions

if TYPE_CHECKING:
    from oarlock.client.synchronous import clients

F = TypeVar("F", bound=Callable[..., Any])

SERVER_SECTION = "Server"


class Option(click.Option):
    """An option with the section of `--help` that lists it."""

    def __init__(self, *args: Any, section: str = "Options", **named: Any) -> None:
        super().__init__(*args, **named)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        """Show a default that is given in words without click's brackets around the words."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra


class Command(click.Command):
    """A command with a `--help` that lists options by section."""

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
    """A command with subcommands. `elsewhere` is the hint for a word that is not one of them."""

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
            hint += self.elsewhere or f"`{ctx.command_path} --help` lists its commands."
            raise errors.InvalidInput(f"`{ctx.command_path}` has no command {word[:60]!r}", hint=hint)
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
    """Add `--server` and `--token`, as arguments of those names."""
    for name, default, text in (
        ("token", None, "Token for the server. OARLOCK_TOKEN is safer: other users can see arguments."),
        ("server", "OARLOCK_SERVER, config.toml, or the local server", "URL of the server."),
    ):
        settings = {"metavar": name.upper(), "show_default": default, "help": text}
        function = option(f"--{name}", section=SERVER_SECTION, **settings)(function)
    return function


def connected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command a `client`, made from `--server` and `--token`."""

    @functools.wraps(function)
    def call(*args: Any, server: str | None, token: str | None, **named: Any) -> Any:
        with open_client(server, token) as client:
            return function(client, *args, **named)

    return server_options(call)


def open_client(
    server: str | None = None, token: str | None = None, *, timeout_s: float = 30.0, **others: str | None
) -> clients.Client:
    """Return a client of the server that flags and settings name. It sends nothing yet."""
    from oarlock.client import settings
    from oarlock.client.synchronous import clients

    _leave_out_httpx_command_line()
    told = settings.from_environment(server=server, token=token, **others)
    return clients.Client(told=told, timeout_s=timeout_s)


def _leave_out_httpx_command_line() -> None:
    """Keep httpx from importing its own command line, with rich and pygments, which takes as long as all the rest.

    httpx works without it.
    """
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # how Python spells "cannot be imported"


def complete_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Return the names of jobs that begin with `incomplete`, newest first. Errors give none: a shell is waiting."""
    from click.shell_completion import CompletionItem

    try:
        given = ctx.params
        with open_client(given.get("server"), given.get("token"), timeout_s=1.0) as client:
            found = client.jobs(limit=100)
    except Exception:  # noqa: BLE001 - a completion that fails offers nothing
        return []
    names = dict.fromkeys((job.name, job.phase) for job in found if job.name.startswith(incomplete))
    return [CompletionItem(name, help=str(phase).lower()) for name, phase in names]
