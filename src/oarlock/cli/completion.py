"""Shell completion of commands, options and names of jobs: the script for the shell, printed or installed.

The script runs `oarlock` at every tab. fish finds it by itself; ~/.bashrc or ~/.zshrc loads it for bash and zsh.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from oarlock.cli.output import terminal
from oarlock.spec import errors

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_OARLOCK_COMPLETE"


def shell_of(environ: Mapping[str, str]) -> str:
    """Return the user's shell, from SHELL."""
    name = Path(environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise errors.InvalidInput(
            f"there is no completion for {name or 'an unnamed shell'}, only for {', '.join(SHELLS)}",
            hint="Name the shell: SHELL=bash oarlock --install-completion",
        )
    return name


def script(shell: str, root: click.Command) -> str:
    made = get_completion_class(shell)
    assert made is not None  # click knows all SHELLS
    return made(root, {}, "oarlock", VARIABLE).source()


def show(environ: Mapping[str, str], root: click.Command) -> None:
    terminal.out(script(shell_of(environ), root))


def install(environ: Mapping[str, str], root: click.Command) -> None:
    """Write the script to its place in the user's home. A second call changes nothing."""
    shell = shell_of(environ)
    home = Path(environ.get("HOME") or "~").expanduser()
    path, rc, line = places(shell, home)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script(shell, root) + "\n", encoding="utf-8")
        if rc is not None:
            said = rc.read_text(encoding="utf-8") if rc.exists() else ""
            if line not in said.splitlines():
                with rc.open("a", encoding="utf-8") as file:
                    file.write(("" if not said or said.endswith("\n") else "\n") + line + "\n")
    except OSError as error:
        raise errors.Unavailable(
            f"{error.filename}: {error.strerror}", hint="`oarlock --show-completion` prints it instead."
        ) from error
    terminal.say(f"New {shell} shells complete `oarlock` ({path}).")


def places(shell: str, home: Path) -> tuple[Path, Path | None, str]:
    """Return the path of the script, the file that loads it, and the line in that file."""
    if shell == "fish":
        return home / ".config/fish/completions/oarlock.fish", None, ""
    path = home / f".oarlock-completion.{shell}"
    rc = home / (".bashrc" if shell == "bash" else ".zshrc")
    return path, rc, f'[ -f "{path}" ] && . "{path}"'
