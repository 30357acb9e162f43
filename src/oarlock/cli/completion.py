"""Shell completion: the script that the shell sources, shown or installed. Verbs, options and the names of jobs.

The script asks `oarlock` itself at every tab. bash, zsh and fish each look for it where `install` puts it; for bash one
line in ~/.bashrc sources it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from click.shell_completion import get_completion_class

from oarlock.cli.output import terminal
from oarlock.spec import errors

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_OARLOCK_COMPLETE"


def shell_of(environ: Mapping[str, str]) -> str:
    """The user's shell, by SHELL."""
    name = Path(environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise errors.InvalidInput(
            f"completion knows {', '.join(SHELLS)}, not {name or 'an unnamed shell'}",
            hint="Say which: SHELL=bash oarlock --install-completion",
        )
    return name


def script(shell: str) -> str:
    from oarlock.cli import main

    made = get_completion_class(shell)
    assert made is not None  # SHELLS are those that click knows
    return made(main.root, {}, "oarlock", VARIABLE).source()


def show(environ: Mapping[str, str]) -> None:
    terminal.out(script(shell_of(environ)))


def install(environ: Mapping[str, str]) -> None:
    """Write the script where the shell finds it; again: the same."""
    shell = shell_of(environ)
    home = Path(environ.get("HOME") or "~").expanduser()
    path, rc, line = places(shell, home)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script(shell) + "\n", encoding="utf-8")
        if rc is not None:
            said = rc.read_text(encoding="utf-8") if rc.exists() else ""
            if line not in said.splitlines():
                with rc.open("a", encoding="utf-8") as file:
                    file.write(("" if not said or said.endswith("\n") else "\n") + line + "\n")
    except OSError as error:
        raise errors.Unavailable(
            f"{error.filename}: {error.strerror}", hint="`oarlock --show-completion` prints it instead."
        ) from error
    terminal.say(f"{shell} completes `oarlock` in every new shell ({path}).")


def places(shell: str, home: Path) -> tuple[Path, Path | None, str]:
    """Where the script goes, and the line of which file sources it."""
    if shell == "fish":
        return home / ".config/fish/completions/oarlock.fish", None, ""
    path = home / f".oarlock-completion.{shell}"
    rc = home / (".bashrc" if shell == "bash" else ".zshrc")
    return path, rc, f'[ -f "{path}" ] && . "{path}"'
