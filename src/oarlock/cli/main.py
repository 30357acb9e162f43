"""The entry point of the command line, with one line for each command.

A command's module is imported when the command is called, so that `oarlock --help` and a mistyped word load only click.
The result goes to stdout and everything else to stderr. The exit code is the job's if one was followed, 2 for a wrong
command line, and 1 for every other error.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from oarlock.cli import complaints
from oarlock.cli.output import terminal
from oarlock.spec import errors
from oarlock.spec.hints import suggestions

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "run": ("jobs.run:run", "Submit the working directory with a command, and follow it"),
        "submit": ("jobs.submit:submit", "Submit a job file"),
        "advise": ("jobs.advise:advise", "Measure a training script, and predict how it scales"),
        "plan": ("jobs.submit:plan", "Tell when and where a job file would start: now, later or never"),
    },
    "Look": {
        "ps": ("jobs.ps:ps", "List jobs"),
        "show": ("jobs.show:show", "Show one job's whole story"),
        "why": ("jobs.show:why", "Say in three lines why a job is in its state"),
        "logs": ("results.logs:logs", "Print a job's output"),
        "metrics": ("results.metrics:metrics", "Show a job's metrics"),
        "files": ("results.files:files", "List the files that a job left"),
        "download": ("results.files:download", "Fetch the files that a job left"),
        "ui": ("server.ui:ui", "Open the pages in a browser"),
        "tensorboard": ("results.tensorboard:tensorboard", "Open a job's metrics in TensorBoard"),
    },
    "Act": {
        "halt": ("jobs.intents:halt", "Stop jobs, to be resumed later"),
        "resume": ("jobs.intents:resume", "Continue halted jobs"),
        "cancel": ("jobs.intents:cancel", "Stop jobs for good"),
        "set": ("jobs.edits:set_job", "Change the priority, the pool or the number of workers of a job"),
        "rm": ("jobs.intents:rm", "Remove jobs that have ended"),
        "exec": ("jobs.execute:execute", "Run a command inside a task"),
    },
    "Cluster": {
        "nodes": ("cluster.cluster:nodes", "List the machines and the jobs on them"),
        "pools": ("cluster.pools:pools", "Draw the tree of resource pools"),
        "pool": ("cluster.pools:pool", "Create, change or remove a resource pool"),
        "sizes": ("cluster.cluster:sizes", "List the T-shirt sizes of `run --size`"),
        "usage": ("cluster.cluster:usage", "Sum up device-hours and CPU-hours"),
        "simulate": ("cluster.simulate:simulate", "Simulate a workload on a cluster, under several policies"),
    },
    "Server": {
        "up": ("server.server:up", "Start the local server"),
        "down": ("server.server:down", "Stop the local server; running jobs go on"),
        "doctor": ("server.doctor:doctor", "Find faults of the setup here, and tell how to repair them"),
        "login": ("server.accounts:login", "Remember a server and its token"),
        "secrets": ("server.secretnames:secrets", "List, set and remove secrets"),
        "users": ("server.accounts:users", "Manage users and tokens, as an administrator"),
        "sessions": ("server.sessions:sessions", "List and end your sessions in browsers"),
        "version": ("server.server:version", "Print the versions of the client and the server"),
    },
}
VERBS = {verb: place for verbs in SECTIONS.values() for verb, place in verbs.items()}


class Root(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(f"oarlock.cli.verbs.{module}"), name)
        assert isinstance(found, click.Command)  # the table above names it
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in VERBS and not ctx.resilient_parsing and not word.startswith("-"):
            raise errors.InvalidInput(f"there is no command {word[:60]!r}", hint=nearest_verb(word))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, verbs in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(verb.ljust(11), text) for verb, (_, text) in verbs.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(verb, help=text) for verb, (_, text) in VERBS.items() if verb.startswith(incomplete)]


def nearest_verb(word: str) -> str:
    """Return a hint for a word that is not a command."""
    from oarlock.cli import foreign

    habit = foreign.meant(word, {verb: text for verb, (_, text) in VERBS.items()})
    if habit:
        return habit
    near = suggestions.nearest(word, VERBS)
    return f"Did you mean `oarlock {near}`?" if near else "`oarlock --help` lists the commands."


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import oarlock

        terminal.out(f"oarlock {oarlock.__version__}")
        ctx.exit()


def _completion(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Carry out an option that is not eager: with `--help` beside it, help is printed and nothing else is done."""
    if value and not ctx.resilient_parsing:
        from oarlock.cli import completion

        if param.name == "install_completion":
            completion.install(os.environ, root)
        else:
            completion.show(os.environ, root)
        ctx.exit()


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Run deep-learning jobs on this machine or on a cluster.",
    epilog="Start with: oarlock run -- python train.py",
    no_args_is_help=True,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.option(
    "--install-completion",
    is_flag=True,
    expose_value=False,
    callback=_completion,
    help="Install completion of commands, options and jobs for this shell.",
)
@click.option(
    "--show-completion",
    is_flag=True,
    expose_value=False,
    callback=_completion,
    help="Print the completion script.",
)
def root() -> None:
    pass


def main(args: Sequence[str]) -> int:
    """Run one command line and return the exit code."""
    terminal.forgiving()
    as_json = "--json" in args[: args.index("--") if "--" in args else len(args)]
    try:
        code: object = root.main(list(args), prog_name="oarlock", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except errors.OarlockError as error:
        return complaints.tell(error, as_json=as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        terminal.out(error.ctx.get_help())
        return 2
    except click.ClickException as error:
        return _usage(error, as_json)
    except (KeyboardInterrupt, click.Abort):
        terminal.say("Interrupted.")
        return 130
    except BrokenPipeError:
        _drop_stdout()
        return 1
    except Exception as error:  # noqa: BLE001 - the outermost border: a user sees a traceback only with OARLOCK_DEBUG
        complaints.debug(error)
        return complaints.tell_unforeseen(error, as_json=as_json)


def _usage(error: click.ClickException, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    hint = f"See `{context.command_path} --help`." if context is not None else "See `oarlock --help`."
    return complaints.tell_usage(error.format_message(), hint, as_json=as_json)


def _drop_stdout() -> None:
    """Replace stdout, because its reader has gone: flushing it at the end would fail."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())


def app_entry() -> None:
    atexit.register(gc.freeze)  # the interpreter's last collections take a quarter of a short command's processor time
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    app_entry()
