"""The variables of the submitting shell that a local server gets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from oarlock.client import verbs

BIN = Path(sys.executable).parent


def test_the_environment_that_oarlock_was_called_from_comes_first() -> None:
    shell = verbs.shell_of({"PATH": "/usr/bin"}, program=str(BIN / "oarlock"))
    assert shell["PATH"] == f"{BIN}{os.pathsep}/usr/bin"
    assert shell["VIRTUAL_ENV"] == sys.prefix


def test_an_activated_environment_and_a_link_elsewhere_change_nothing() -> None:
    active = {"PATH": f"/opt/bin{os.pathsep}{BIN}", "HOME": "/root"}
    assert verbs.shell_of(active, program=str(BIN / "oarlock")) == {"PATH": active["PATH"]}
    assert verbs.shell_of({"PATH": "/usr/bin"}, program="/usr/local/bin/oarlock") == {"PATH": "/usr/bin"}
