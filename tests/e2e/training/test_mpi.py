"""MPI: the command runs once, in a launcher, over the slots of the workers. `tests/guests` has a real Open MPI."""

from __future__ import annotations

import pytest
from tests.e2e import shell as shells

MPIRUN = """
#!/usr/bin/env python3
'''Starts -n ranks, or one for each slot of the hostfile, as Open MPI's mpirun does; more than the slots are refused.'''
import os, subprocess, sys
lines = open(os.environ["OMPI_MCA_orte_default_hostfile"]).read().split()
slots = sum(int(word.removeprefix("slots=")) for word in lines if word.startswith("slots="))
words = sys.argv[1:]
size = int(words[1]) if words[0] == "-n" else slots
if size > slots:
    sys.exit(f"There are not enough slots available: {size} of {slots}")
command = words[2:] if words[0] == "-n" else words
started = [
    subprocess.Popen(command, env={**os.environ, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size)})
    for rank in range(size)
]
sys.exit(max(one.wait() for one in started))
"""
RANK = "import os; print('rank', os.environ['OMPI_COMM_WORLD_RANK'], 'of', os.environ['OMPI_COMM_WORLD_SIZE'])"


@pytest.mark.long
def test_the_command_runs_once_over_the_slots_of_the_workers(shell: shells.Shell) -> None:
    shell.write("mpirun", MPIRUN).chmod(0o755)
    shell.write("rank.py", RANK)
    run = ("run", "--framework", "mpi", "--cpus", "0.1", "--memory", "256Mi")
    two = shell.do(*run, "--workers", "2", "--name", "two", "--", "./mpirun", "-n", "2", "python", "rank.py")
    assert sorted(two.stdout.splitlines()) == ["launcher-0 | rank 0 of 2", "launcher-0 | rank 1 of 2"]
    assert sorted(shell.job("two")["spec"]["roles"]) == ["launcher", "worker"]
    all_slots = shell.do(*run, "--workers", "2", "--nproc", "2", "--", "./mpirun", "python", "rank.py")
    assert all_slots.stdout.count("of 4") == 4
    refused = shell.do(*run, "--workers", "2", "--", "./mpirun", "-n", "3", "python", "rank.py", code=1)
    assert "There are not enough slots available: 3 of 2" in refused.stdout + refused.stderr
