"""A server on this machine for a cluster of which the pods reach it: one of the cluster's nodes is this machine."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.backends.kubernetes.testcluster import apiserver
from tests.documentation import blocks
from tests.e2e import shell as shells

IMAGE = "registry.example/oarlock:1"
PATIENCE_S = 600


def address(kubeconfig: str) -> str:
    """Return an address of this machine that pods reach; empty where no node of the cluster is this machine."""
    command = ["kubectl", "--kubeconfig", kubeconfig, "get", "nodes", "--output", "json"]
    nodes = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["items"]
    every = [one for node in nodes for one in node["status"]["addresses"]]
    return next((one["address"] for one in every if one["type"] == "InternalIP" and _is_mine(one["address"])), "")


def _is_mine(address: str) -> bool:
    with contextlib.suppress(OSError), socket.socket() as trial:
        trial.bind((address, 0))
        return True
    return False


@contextlib.contextmanager
def opened(kubeconfig: str, host: str, folder: Path, settings: str) -> Iterator[shells.Shell]:
    """Open the shell of a user whose server runs at this address, with TLS and these settings of `[kubernetes]`."""
    (port,) = apiserver.free_ports(1)
    url, one = f"https://{host}:{port}", shells.Shell(folder)
    tls, home = one.home / "tls", one.home
    home.mkdir()
    script = str(blocks.ROOT / "deploy" / "base" / "certificate.sh")
    subprocess.run(["sh", script, str(tls), url, "localhost"], check=True, capture_output=True)
    (home / "config.toml").write_text(
        f'[server]\nhost = "{host}"\nport = {port}\nurl = "{url}"\n\n'
        + settings.replace("[kubernetes]\n", f'[kubernetes]\nimage = "{IMAGE}"\n')
    )
    files = {"TLS_CERT": tls / "server.pem", "TLS_KEY": tls / "key.pem", "TLS_CA": tls / "server.pem"}
    one.env |= {f"OARLOCK_{name}": str(path) for name, path in files.items()}
    one.env |= {"OARLOCK_CA_FILE": str(tls / "server.pem"), "KUBECONFIG": kubeconfig}
    try:
        one.do("up", "--backend", "kubernetes", "--detach", timeout_s=PATIENCE_S)
        yield one
    finally:
        one.do("down", code=None)
