"""The ports of servers and gangs of the tests: chosen long before they are used, and no other process's meanwhile."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.backends.kubernetes.testcluster import apiserver, kubelet

ROOT = Path(__file__).parents[3]
CHOOSE = "from tests.backends.kubernetes.testcluster import kubelet; print(kubelet.gang_ports())"


def test_a_free_port_is_kept_until_its_server_listens() -> None:
    (port,) = apiserver.free_ports(1)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    for _ in range(2):  # it may start again
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_the_gangs_of_two_processes_have_ports_of_different_parts() -> None:
    mine = {kubelet.gang_ports() for _ in range(3)}
    done = subprocess.run([sys.executable, "-c", CHOOSE], cwd=ROOT, capture_output=True, text=True, check=True)
    parts = [(first - kubelet.PORTS.start) // kubelet.PORTS_OF_PROCESS for first in (*mine, int(done.stdout))]
    assert len(mine) == 3
    assert len({*parts}) == 2
