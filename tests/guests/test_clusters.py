"""Frameworks with processes that find each other by an address: TF_CONFIG, JAX, and MPI under its own mpirun."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sysconfig

import pytest
from tests import needs
from tests.guests import sides as both

pytestmark = pytest.mark.guests


def free_addresses(count: int) -> list[str]:
    """Loopback addresses whose ports were free a moment ago."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]


def by_hand(sides: both.Sides, script: str, environments: list[dict[str, str]], forever: int = 0) -> list[str]:
    """Start the script once for each environment, as a user without a launcher does.

    The last `forever` of them do not end by themselves: they are killed once the others have ended.
    """
    outside = sides.outside()
    started = [
        subprocess.Popen(
            ["python", script], env={**outside, **one}, cwd=sides.shell.work, stdout=subprocess.PIPE, text=True
        )
        for one in environments
    ]
    said = []
    try:
        for number, process in enumerate(started):
            if number >= len(started) - forever:
                process.kill()
            said.append(process.communicate(timeout=both.PATIENCE_S)[0])
            assert number >= len(started) - forever or process.returncode == 0, said
    finally:
        for process in started:
            process.kill()
            process.wait()
    return both.lines("".join(said))


def test_tf_config(sides: both.Sides) -> None:
    addresses = free_addresses(4)
    cluster = {"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:]}
    tasks = [("chief", 0), ("worker", 0), ("worker", 1), ("evaluator", 0), ("ps", 0)]
    configs = [{"cluster": cluster, "task": {"type": role, "index": index}} for role, index in tasks]
    expected = by_hand(sides, "tf_config.py", [{"TF_CONFIG": json.dumps(one)} for one in configs], forever=1)
    sizes = "{'chief': 1, 'ps': 1, 'worker': 2}"
    assert {f"chief 0 of {sizes}", f"worker 1 of {sizes}", f"evaluator 0 beside {sizes}"} <= set(expected)
    roles = ("--chief", "--workers", "2", "--ps", "1", "--evaluator", "--cpus", "0.2")
    assert sides.oarlock("--framework", "tensorflow", *roles, "--", "python", "tf_config.py") == expected


@pytest.mark.parametrize("script", ["tf_mirrored.py", "tf_fit.py"])
def test_tensorflow_with_mirrored_workers(sides: both.Sides, script: str) -> None:
    both.need("tensorflow")
    addresses = free_addresses(2)
    configs = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}} for index in range(2)]
    expected = by_hand(sides, script, [{"TF_CONFIG": json.dumps(one)} for one in configs])
    assert [line.partition(":")[0] for line in expected] == ["rank 0 of 2", "rank 1 of 2"]
    flags = ("--framework", "tensorflow", "--workers", "2")
    assert len({line.partition(":")[2] for line in expected}) == 1, "the loss is that of both"
    assert sides.oarlock(*flags, "--", "python", script) == expected


def test_tensorflow_with_parameter_servers(sides: both.Sides) -> None:
    both.need("tensorflow")
    addresses = free_addresses(4)
    cluster = {"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:]}
    tasks = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)]
    configs = [{"cluster": cluster, "task": {"type": role, "index": index}} for role, index in tasks]
    expected = by_hand(sides, "tf_servers.py", [{"TF_CONFIG": json.dumps(one)} for one in configs], forever=3)
    sizes = "{'chief': 1, 'ps': 1, 'worker': 2}"
    told = f"chief 0 of {sizes}: on /job:ps/replica:0/ the loss fell: True"
    assert expected == sorted([told, *(f"{one} of {sizes}" for one in ("worker 0", "worker 1", "ps 0"))])
    flags = ("--framework", "tensorflow", "--chief", "--workers", "2", "--ps", "1", "--cpus", "0.2")
    assert sides.oarlock(*flags, "--", "python", "tf_servers.py") == expected


def test_jax(sides: both.Sides) -> None:
    both.need("jax")
    (address,) = free_addresses(1)
    place = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    expected = by_hand(sides, "with_jax.py", [{**place, "JAX_PROCESS_ID": str(number)} for number in range(2)])
    assert [line.partition(":")[0] for line in expected] == ["rank 0 of 2, 2 devices", "rank 1 of 2, 2 devices"]
    jax = ("--framework", "jax")
    assert sides.oarlock(*jax, "--workers", "2", "--", "python", "with_jax.py") == expected
    assert sides.oarlock(*jax, "--nproc", "2", "--", "python", "with_jax.py") == expected


OPEN_MPI = {"MPI4PY_MPIABI": "openmpi"}
"""Keeps mpi4py from taking MPICH, which it does where MPICH's libraries for developers are installed too."""
SAID = tuple(f"--env={name}={value}" for name, value in OPEN_MPI.items())


def test_mpi(sides: both.Sides) -> None:
    both.need("mpi4py")
    assert shutil.which("mpirun"), "no mpirun here: as root `make test-guests` installs openmpi-bin by apt-get"
    expected = sides.direct("mpirun", "--oversubscribe", "-n", "2", "python", "with_mpi.py", env=OPEN_MPI)
    assert [line.partition(":")[0] for line in expected] == ["rank 0 of 2", "rank 1 of 2"]
    mpi = ("--framework", "mpi", "--workers", "2", *SAID)
    assert sides.oarlock(*mpi, "--", "mpirun", "-n", "2", "python", "with_mpi.py") == expected
    assert sides.oarlock(*mpi, "--", "mpirun", "python", "with_mpi.py") == expected


def test_mpi_tells_the_code_of_an_abort(sides: both.Sides) -> None:
    both.need("mpi4py")
    command = ("-n", "2", "python", "with_mpi.py", "7")
    sides.direct("mpirun", "--oversubscribe", *command, code=7, env=OPEN_MPI)
    sides.oarlock("--framework", "mpi", "--workers", "2", *SAID, "--", "mpirun", *command, code=7)


@needs.mark("mpiexec.hydra", there=shutil.which("mpiexec.hydra") is not None)
def test_mpi_under_hydra(sides: both.Sides) -> None:
    """MPICH's launcher and library, beside Open MPI's. mpi4py asks for the library by the name that MPICH gives it."""
    both.need("mpi4py")
    libraries = sides.shell.home.parent / "mpich"
    libraries.mkdir(exist_ok=True)
    name = libraries / "libmpi.so.12"
    if not name.exists():
        name.symlink_to("/usr/lib/" + str(sysconfig.get_config_var("MULTIARCH")) + "/libmpich.so.12")
    env = {"LD_LIBRARY_PATH": str(libraries), "MPI4PY_MPIABI": "mpich"}
    expected = sides.direct("mpiexec.hydra", "-n", "2", "python", "with_mpi.py", env=env)
    assert [line.partition(":")[0] for line in expected] == ["rank 0 of 2", "rank 1 of 2"]
    mpi = ("--framework", "mpi", "--workers", "2", *(f"--env={name}={value}" for name, value in env.items()))
    assert sides.oarlock(*mpi, "--", "mpiexec.hydra", "-n", "2", "python", "with_mpi.py") == expected
    assert sides.oarlock(*mpi, "--", "mpiexec.hydra", "python", "with_mpi.py") == expected, "all slots"
    sides.oarlock(*mpi, "--", "mpiexec.hydra", "python", "with_mpi.py", "7", code=7)
