"""Completion in a shell: verbs, options and names of jobs; silent where no server answers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.cli import typed
from tests.client import live


def offered(*words: str) -> list[str]:
    environ = {
        "_OARLOCK_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["oarlock", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = typed.run(env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_verbs_and_options() -> None:
    assert offered("p") == ["plan", "ps", "pools", "pool"]
    assert "--workers" in offered("run", "--w")
    assert offered("run", "--framework", "t") == ["torch", "tensorflow"]
    assert offered("users", "") == ["add", "list", "remove", "revoke", "token", "tokens"]


def test_names_of_jobs(server: live.LiveServer) -> None:
    server.submit(name="digits")
    server.submit(name="dogs")
    assert set(offered("show", "d")) == {"digits", "dogs"}
    assert offered("cancel", "di") == ["digits"]
    assert offered("logs", "-f", "do") == ["dogs"]


@pytest.mark.parametrize("environ", [{}, {"OARLOCK_SERVER": "http://127.0.0.1:9"}, {"OARLOCK_SERVER": "ftp://"}])
def test_nothing_where_no_server_answers(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert offered("show", "d") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_it_is_installed_once_for_each_shell(shell: str, tmp_path: Path) -> None:
    environ = {"SHELL": f"/bin/{shell}", "HOME": str(tmp_path)}
    for _ in range(2):
        done = typed.run("--install-completion", env=environ)
        assert done.returncode == 0, done.stderr
    rc = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/completions/oarlock.fish"}[shell]
    text = (tmp_path / rc).read_text()
    assert text.count("oarlock-completion") == (2 if shell != "fish" else 0)
    assert "_OARLOCK_COMPLETE" in typed.run("--show-completion", env=environ).stdout
    if shell == "bash":
        subprocess.run(["bash", "-n", str(tmp_path / ".oarlock-completion.bash")], check=True)


@pytest.mark.parametrize(
    "words", ["--install-completion --help", "-h --install-completion", "--help --show-completion"]
)
def test_beside_help_nothing_is_installed(words: str, tmp_path: Path) -> None:
    done = typed.run(*words.split(), env={"SHELL": "/bin/bash", "HOME": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: oarlock")
    assert list(tmp_path.iterdir()) == []


def test_a_shell_that_is_not_known_is_said() -> None:
    done = typed.run("--install-completion", env={"SHELL": "/bin/tcsh"})
    assert done.returncode == 2
    assert "bash" in done.stderr
