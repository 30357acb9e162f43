"""A real API server for the tests: etcd and kube-apiserver out of the folder that KUBEBUILDER_ASSETS names.

Nothing else of a cluster runs: no controllers, no scheduler, no node. So a test says what nodes there are and what
becomes of pods (`cluster.Cluster`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests import needs
from tests.backends.kubernetes.testcluster import rights

ASSETS = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/usr/local/kubebuilder/bin")
PATIENCE_S = 600.0
"""A server that starts too late fails all tests that share it."""
TOKENS = f"""\
admin-token,admin,admin,"system:masters"
a-token,tenant-a,tenant-a
b-token,tenant-b,tenant-b
{rights.SERVER},system:serviceaccount:oarlock:oarlock,oarlock,"system:serviceaccounts,system:serviceaccounts:oarlock"
"""


class ApiServer:
    """One API server over its own etcd, in a folder of its own. Both can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._etcd_port, self._peer_port = free_ports(3)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True)
        (folder / "tokens.csv").write_text(TOKENS)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.start_etcd()
        self.start_api()
        self.until_ready()

    def start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def start_api(self) -> None:
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--service-account-key-file={self.folder / 'sa.key'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",  # the accounts would be missing: there are no controllers
        )

    def start_garbage_collector(self) -> None:
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig()}",
            "--controllers=garbagecollector",
            "--leader-elect=false",
            f"--secure-port={free_ports(1)[0]}",
            "--bind-address=127.0.0.1",
            "--port=0",
            f"--cert-dir={self.folder / 'certificates'}",
        )

    def start_scheduler(self) -> None:
        """Start the stock scheduler, without the limits of its client."""
        self._start(
            "kube-scheduler",
            f"--kubeconfig={self.kubeconfig()}",
            "--leader-elect=false",
            "--kube-api-qps=5000",
            "--kube-api-burst=5000",
            "--secure-port=0",
            "--port=0",
        )

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def has_ended(self, name: str) -> bool:
        """Return whether this program ends by itself: one that tells where it has failed takes a moment."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[name].wait(30)
        return self._processes[name].returncode is not None

    def check(self, name: str) -> None:
        """Fail with the last words of this program, if it has ended by itself."""
        code = self._processes[name].poll()
        assert code is None, f"{name} ended with {code}: {(self.folder / f'{name}.log').read_text()[-2000:]}"

    def pause(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)

    def end(self) -> None:
        for name in list(self._processes):
            self.stop(name, signal.SIGKILL)

    def until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            for name in self._processes:
                self.check(name)
            assert time.monotonic() < deadline, (self.folder / "kube-apiserver.log").read_text()[-2000:]
            time.sleep(0.2)

    def kubeconfig(self, token: str = "admin-token", **cluster: object) -> Path:
        """Write a kubeconfig of the user that has this token. A program that reads it meanwhile finds it whole."""
        path = self.folder / f"kubeconfig-{token}"
        trust = {"certificate-authority": str(self.folder / "certificates" / "apiserver.crt")}
        said = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, **trust, **cluster}}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user", "namespace": "default"}}],
            "current-context": "test",
        }
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False) as new:
            yaml.safe_dump(said, new)
        return Path(new.name).replace(path)

    def _is_ready(self) -> bool:
        headers = {"Authorization": "Bearer admin-token"}
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.get(f"{self.url}/readyz", headers=headers, verify=False, trust_env=False, timeout=60.0)
            return answer.status_code == 200
        return False

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(ASSETS / name), *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


_kept = contextlib.ExitStack()
atexit.register(_kept.close)


def free_ports(count: int) -> list[int]:
    """Return ports at which nothing listens. They stay this process's own, also while no server of it has them.

    A server may start minutes later, or start again. Each port is kept by a socket that never listens: the kernel
    gives it to no program that asks for any port, and a server with SO_REUSEADDR, as all of ours, can listen there.
    """
    kept = [_kept.enter_context(socket.socket()) for _ in range(count)]
    for one in kept:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
    return [one.getsockname()[1] for one in kept]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ApiServer]:
    server = ApiServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.end()


needed = needs.mark("Kubernetes API server", there=(ASSETS / "kube-apiserver").exists())

scheduled = needs.mark("kube-scheduler", there=(ASSETS / "kube-scheduler").exists())
