"""`oarlock secrets`: a value goes in by stdin, is never shown, and comes out in the jobs that may name it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.e2e import shell as shells


def test_a_secret_is_made_used_listed_and_removed(tmp_path: Path) -> None:
    shell = shells.Shell(tmp_path)
    try:
        shell.do("up", "--detach")
        shell.do("secrets", "set", "hub-token", code=2)  # nothing on stdin
        command = [shells.OARLOCK, "secrets", "set", "hub-token", "--json"]
        made = subprocess.run(
            command, env=shell.env, input="a value of mine\n", capture_output=True, text=True, timeout=280, check=True
        )
        assert json.loads(made.stdout)["name"] == "hub-token"
        listed = shell.do("secrets", "list").stdout
        assert "hub-token" in listed
        assert "a value of mine" not in listed
        say = "import os; print(len(os.environ['HUB_TOKEN']), os.environ['HUB_TOKEN'])"
        done = shell.do("run", "--secret", "hub-token", "--", "python", "-c", say)
        assert f"{len('a value of mine')} {'*' * len('a value of mine')}" in done.stdout
        shell.do("secrets", "rm", "hub-token")
        assert "no secret" in shell.do("run", "--secret", "hub-token", "--", "true", code=2).stderr
    finally:
        shell.do("down", code=None)
