"""Each problem is made, found, and told with its fix; and a healthy home has none."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import needs
from tests.cli import typed
from tests.client import live

from oarlock.cli import checks
from oarlock.client import settings
from oarlock.display import findings


def around(home: Path, **changes: object) -> checks.Surroundings:
    environ = {"PATH": os.environ["PATH"], "OARLOCK_HOME": str(home)}
    given = {"home": home, "told": settings.Settings(home=home), "environ": environ, **changes}
    return checks.Surroundings(**given)  # type: ignore[arg-type]


def problems(check: checks.Check, surroundings: checks.Surroundings) -> list[findings.Finding]:
    found = [one for one in check(surroundings) if one.state in (findings.State.PROBLEM, findings.State.WARNING)]
    assert all(one.fix for one in found), "a problem without its fix"
    return found


def the_problem(check: checks.Check, surroundings: checks.Surroundings) -> str:
    found = problems(check, surroundings)
    assert len(found) == 1, found
    return f"{found[0].message} | {found[0].fix}"


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "OARLOCK_HOME" in the_problem(checks.home_writable, around(tmp_path / "file" / "home"))
    assert not problems(checks.home_writable, around(tmp_path / "good"))


def test_a_full_disk(tmp_path: Path) -> None:
    def disk(free: int) -> Callable[[Path], tuple[int, int]]:
        return lambda path: (100 << 30, free)

    assert "full" in the_problem(checks.disk, around(tmp_path, disk_usage=disk(1 << 20)))
    assert "nearly" in the_problem(checks.disk, around(tmp_path, disk_usage=disk(3 << 30)))
    assert not problems(checks.disk, around(tmp_path, disk_usage=disk(50 << 30)))


def test_a_small_disk_in_earnest(tmp_path: Path) -> None:
    """A tmpfs of 1 MB, where it can be mounted."""
    with needs.small_disk(tmp_path / "small", "1m") as place:
        assert "full" in the_problem(checks.disk, around(place / "home"))


def test_a_clock_that_is_off(tmp_path: Path) -> None:
    ahead = around(tmp_path, clock=lambda: time.time() + 3600)
    assert "NTP" in the_problem(checks.home_writable, ahead)
    assert "before Oarlock was installed" in the_problem(checks.clock_plausible, around(tmp_path, clock=lambda: 0.0))
    assert not problems(checks.clock_plausible, around(tmp_path))


def test_a_server_whose_clock_is_another(server: live.LiveServer, home: Path) -> None:
    told = settings.Settings(home=home, server=server.url, token=server.token, named="--server")
    late = around(home, told=told, clock=lambda: time.time() - 600)
    assert "600 s apart" in the_problem(checks.named_server, late) or "599 s" in the_problem(checks.named_server, late)
    assert not problems(checks.named_server, around(home, told=told))


def test_a_named_server_that_does_not_answer(home: Path) -> None:
    told = settings.Settings(home=home, server="http://127.0.0.1:9", named="OARLOCK_SERVER")
    assert "OARLOCK_SERVER" in the_problem(checks.named_server, around(home, told=told))


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "lustre"])
def test_a_home_on_a_network_file_system(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/x {os.path.realpath(tmp_path)}/far {kind} rw 0 0\n")
    assert kind in the_problem(checks.network_file_system, around(tmp_path / "far" / "home", mounts=mounts))
    assert not problems(checks.network_file_system, around(tmp_path / "farther", mounts=mounts))


@pytest.mark.parametrize("name", ["token", "login.json"])
def test_a_token_that_others_can_read(home: Path, name: str) -> None:
    home.mkdir()
    (home / name).write_text("x")
    (home / name).chmod(0o644)
    assert f"chmod 600 {home / name}" in the_problem(checks.token, around(home))
    (home / name).chmod(0o600)
    assert not problems(checks.token, around(home))


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_stale_server(home: Path) -> None:
    home.mkdir()
    path = home / "server.json"
    path.write_text(json.dumps({"url": "http://127.0.0.1:9", "pid": dead_pid()}))
    assert "which does not exist" in the_problem(checks.stale_server, around(home))
    path.write_text(json.dumps({"url": "http://127.0.0.1:9", "pid": os.getpid(), "version": "0.0.1"}))
    found = problems(checks.stale_server, around(home))
    assert "version 0.0.1" in found[0].message
    assert "does not answer" in found[1].message
    path.write_text("{")
    assert "damaged" in the_problem(checks.stale_server, around(home))


def test_a_server_that_answers_is_no_problem(server: live.LiveServer, home: Path) -> None:
    told = json.loads((home / "server.json").read_text())
    (home / "server.json").write_text(json.dumps({**told, "version": ""}))
    assert not problems(checks.stale_server, around(home))
    (home / "token").write_text("another")
    assert "does not accept the token" in the_problem(checks.stale_server, around(home))


def test_a_port_that_is_taken(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ill = around(home, environ={"PATH": "", "OARLOCK_HOME": str(home), "OARLOCK_PORT": port})
        assert "cannot listen on its port" in the_problem(checks.port, ill)
    assert not problems(checks.port, around(home))


def test_a_python_without_torch(tmp_path: Path, home: Path) -> None:
    """The interpreter that jobs would get, once without torch, once that does not run, once none."""
    place = tmp_path / "bin"
    place.mkdir()
    ill = around(home, environ={"PATH": str(place)})
    assert "no `python`" in the_problem(checks.python, ill)
    python = place / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    assert "[torch]'" in the_problem(checks.python, ill)
    python.write_text("#!/bin/sh\nexit 3\n")
    assert "does not run" in the_problem(checks.python, ill)
    python.write_text("#!/bin/sh\necho 3.12.0 True\n")
    assert not problems(checks.python, ill)


def test_settings_that_cannot_be_read(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[client]\nsever = 1\n")
    assert "config.toml" in the_problem(checks.config, around(home))


def test_small_shared_memory(tmp_path: Path, home: Path) -> None:
    ill = around(home, shm=tmp_path, disk_usage=lambda path: (1 << 20, 1 << 20))
    assert "--shm-size" in the_problem(checks.shared_memory, ill)


def test_control_groups_are_told_and_are_no_problem(tmp_path: Path, home: Path) -> None:
    found = list(checks.cgroups(around(home, cgroups=tmp_path / "none")))
    assert [one.state for one in found] == [findings.State.INFO]
    (tmp_path / "own").write_text("4:memory:/a\n1:cpu,cpuacct:/\n0::/\n")
    for place in ("memory/a", "cpu"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "cgroup.procs").write_text("")
    v1 = around(home, cgroups=tmp_path, own_cgroup=tmp_path / "own")
    assert [one.state for one in checks.cgroups(v1)] == [findings.State.GOOD]
    (tmp_path / "cpu" / "cgroup.procs").unlink()
    (partly,) = checks.cgroups(v1)
    assert (partly.state, "only memory" in partly.message) == (findings.State.INFO, True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "own").write_text("0::/\n")
    found = list(checks.cgroups(around(home, cgroups=tmp_path, own_cgroup=tmp_path / "own")))
    assert [one.state for one in found] == [findings.State.GOOD]


def test_a_gpu_driver_that_does_not_answer(tmp_path: Path, home: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho driver mismatch\nexit 18\n")
    tool.chmod(0o755)
    ill = around(home, environ={"PATH": str(tmp_path) + ":/bin:/usr/bin"})
    assert "driver mismatch" in the_problem(checks.gpus, ill)


def test_the_command_says_all_of_it_and_exits_1_for_a_problem(home: Path) -> None:
    home.mkdir()
    (home / "token").write_text("x")
    (home / "token").chmod(0o644)
    done = typed.run("doctor")
    assert done.returncode == 1
    assert "FAIL  token" in done.stdout
    assert f"chmod 600 {home / 'token'}" in done.stdout
    as_json = json.loads(typed.run("doctor", "--json").stdout)
    assert any(one["check"] == "token" and one["state"] == "problem" for one in as_json["findings"])
