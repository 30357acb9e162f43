"""A kubelet that runs the containers of pods as processes of this machine, so that the real agent runs in each.

A volume is a folder. Where a container would see it at its mount path, its command, its variables and the files that
its init container has delivered name the folder instead: there is no file system of its own. Each pod has an address
in 127/8 of its own. The mark in the variables of a pod's processes finds all of them at its end, as the kubelet finds
them in its control group.

All pods share the machine's ports and its /tmp, also with the pods of other test processes. So each gang gets ports of
its own (`gang_ports`) in the place of those that all pods have in a cluster, and each container a TMPDIR.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import functools
import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import websockets
from tests.backends.kubernetes.testcluster import cluster
from websockets.asyncio import server as sockets

import oarlock
from oarlock.agent import zipapp
from oarlock.api.process import libraries
from oarlock.backends.kubernetes import reaching, site
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.backends.kubernetes.pods import commands, labels, podstates, rendering
from oarlock.spec import errors

MARK = "TEST_POD"
BIN = Path(sys.executable).parent
PORTS = range(10_000, 19_000)
"""Below those that the kernel gives to connections, and those of the local backend."""
PORTS_OF_PROCESS, PORTS_OF_GANG = 480, 16
TERMINATION_BYTES = 4096
ENDED_CODE = 137
"""The exit code of a container that was not started any more, as of one that was killed."""
CLEAR_AGAIN_S = 0.5
LOADER = '#!/bin/sh\nshift 2  # --library-path DIR\nexec "$@"\n'
"""Stands for the loader of the interpreter that the server's image brings: this machine's interpreter needs none."""


def runtime(folder: Path) -> Path:
    """Make the folder that the server's image has at /opt/oarlock/runtime."""
    (folder / "lib").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "lib" / "loader").write_text(LOADER)
    (folder / "lib" / "loader").chmod(0o755)
    (folder / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    zipapp.build(folder / "agent.pyz")
    library = libraries.library(folder / "library", Path(oarlock.__file__).parent)
    (folder / "train").symlink_to(library, target_is_directory=True)
    (folder / "hook").symlink_to(zipapp.hook_directory(), target_is_directory=True)
    return folder


class RunningCluster(cluster.Cluster):
    """A cluster whose pods run. `paths` are the places of images on this machine; `failures` what went wrong."""

    def __init__(self, api: client.Client, namespace: str, folder: Path) -> None:
        super().__init__(api, namespace)
        self.folder = folder
        self.paths = {rendering.DELIVERED: str(runtime(folder / "runtime")), rendering.PYTHON: sys.executable}
        self.failures: list[str] = []
        self.plugged: list[str] = []  # the GPUs that containers got, by UUID
        self.fates: dict[tuple[str, int], cluster.Play] = {}
        """By a job's name and a task's index: what becomes of the first pod that starts, instead of running."""
        self._numbers = itertools.count()
        self._ports: dict[tuple[str, int], int] = {}  # the first port, by job and attempt
        self._pods: dict[str, asyncio.Task[None]] = {}
        self._environments: dict[tuple[str, str], tuple[dict[str, str], dict[str, str]]] = {}  # by pod and container
        self._commands = Commands(self, folder)
        self._first: dict[str, list[asyncio.subprocess.Process]] = {}  # by the pod's UID: the first of each container
        self._temporary: dict[str, list[str]] = {}  # by the pod's UID: the folders of its containers
        self._ending: set[str] = set()  # UIDs of pods in which nothing starts any more

    async def listen(self) -> None:
        """Let commands be started in pods. Before the first node is added."""
        self.kubelet_port = await self._commands.open()

    async def start_in(self, pod: str, container: str, command: list[str]) -> asyncio.subprocess.Process:
        env, places = self._environments[pod, container]
        words = [translated(word, places) for word in command]
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *words, env=env, cwd=self.pod_folder(pod), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )

    def pod_folder(self, name: str) -> Path:
        return self.folder / "pods" / name

    async def _begin(self, pod: objects.Pod) -> None:
        key = podstates.key(pod)
        name = pod.metadata.annotations.get(f"{labels.PREFIX}/name", "")
        fate = self.fates.pop((name, key.index), None) if key is not None else None
        if fate is not None:
            self.plays[pod.metadata.name] = fate
            await super()._begin(pod)
            return
        self._pods[pod.metadata.uid] = asyncio.create_task(self._run(pod))

    async def _end(self, uid: str, pod: objects.Pod) -> None:
        """End the pod as a kubelet does: SIGTERM, the grace, SIGKILL; only then is the object gone."""
        asyncio.create_task(self._ended(uid, pod, pod.metadata.deletion_grace_period_seconds or 0))  # noqa: RUF006  (it ends by itself)

    async def _ended(self, uid: str, pod: objects.Pod, grace_s: int) -> None:
        self._ending.add(uid)
        task = self._pods.pop(uid, None)
        if task is not None and not task.done():
            for process in self._first.get(uid, ()):
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            await asyncio.wait([task], timeout=grace_s)
        self._clear(uid)
        while task is not None and not task.done():  # a process may just have been starting
            await asyncio.wait([task], timeout=CLEAR_AGAIN_S)
            self._clear(uid)
        await self.api.delete(f"{self.path('pods')}/{pod.metadata.name}", uid=uid, grace_s=0)

    async def close(self) -> None:
        self.lost.clear()  # no pod waits for its node any more
        for uid, task in self._pods.items():
            self._clear(uid)
            await asyncio.wait([task], timeout=60)
        await self._commands.close()
        await super().close()

    def _clear(self, uid: str) -> None:
        """End all processes of the pod, and remove their temporary files."""
        kill(uid)
        for folder in self._temporary.pop(uid, ()):
            shutil.rmtree(folder, ignore_errors=True)

    async def _run(self, pod: objects.Pod) -> None:
        try:
            await self._live(pod)
        except Exception as error:  # noqa: BLE001  (a test reads it: this task is not awaited)
            if pod.metadata.uid not in self._ending:  # else its Secrets may be gone before it has begun
                self.failures.append(f"{pod.metadata.name}: {error!r}")

    async def _live(self, pod: objects.Pod) -> None:
        told: dict[str, Any] = await self.api.get(f"{self.path('pods')}/{pod.metadata.name}", dict[str, Any])
        spec, uid = told["spec"], pod.metadata.uid
        third, last = divmod(next(self._numbers), 250)
        address = f"127.{os.getpid() % 250 + 1}.{third}.{last + 2}"  # other tests run on this machine, too
        folder = self.pod_folder(pod.metadata.name)
        folder.mkdir(parents=True, exist_ok=True)
        volumes = {one["name"]: await self._volume(folder, one) for one in spec.get("volumes", [])}
        for container in spec.get("initContainers", []):
            if await self._contain(folder, container, volumes, uid, address) != 0:
                await self._tell(pod, cluster.ended(1, "the init container failed", "Error"))
                return
        if not await self._know_secrets(pod, spec):
            return
        self._translate(folder, volumes, spec)
        self._move_ports(pod, volumes)
        if uid in self._ending:
            return
        self.starts[pod.metadata.name] += 1
        await self._tell(pod, cluster.running(address, [one["name"] for one in spec["containers"]]))
        contained = {
            one["name"]: asyncio.create_task(self._contain(folder, one, volumes, uid, address))
            for one in spec["containers"]
        }
        await self._tell_first_end(pod, folder, address, contained)
        codes = {name: await ended for name, ended in contained.items()}
        said = {name: self._said(folder, name) or self._lines(folder, name) for name in codes}
        await self.until(lambda: pod.spec.node_name not in self.lost, "the node is back", 600)
        with contextlib.suppress(Exception):  # the pod may be gone
            await self._tell(pod, cluster.all_ended(codes, said))

    async def _tell_first_end(
        self, pod: objects.Pod, folder: Path, address: str, contained: Mapping[str, asyncio.Task[int]]
    ) -> None:
        """Tell that the task has ended while a container of an administrator runs on."""
        ours = [task for name, task in contained.items() if name in site.CONTAINERS]
        if not ours:
            return  # the pod is not a task's
        await asyncio.wait(ours)
        left = [name for name, task in contained.items() if not task.done()]
        if not left:
            return
        codes = {name: task.result() for name, task in contained.items() if task.done()}
        said = {name: self._said(folder, name) for name in codes}
        both = cluster.running(address, left)["containerStatuses"] + cluster.all_ended(codes, said)["containerStatuses"]
        with contextlib.suppress(errors.NotFound):  # the pod is gone
            await self._tell(pod, {"phase": "Running", "containerStatuses": both})

    async def _know_secrets(self, pod: objects.Pod, spec: Mapping[str, Any]) -> bool:
        """Read the values to which variables refer, as soon as they are there; False where the pod is deleted."""
        uid, told = pod.metadata.uid, ""
        while self._watch.items[uid].metadata.deletion_timestamp is None:
            try:
                for container in spec["containers"]:
                    for one in container.get("env", []):
                        if (named := one.get("valueFrom", {}).get("secretKeyRef")) is not None:
                            one["value"] = await self._secret(**named)
                return True
            except LookupError as error:
                if str(error.args[0]) != told:
                    told = str(error.args[0])
                    await self._tell(pod, cluster.waiting("CreateContainerConfigError", told))
                await asyncio.sleep(0.2)
        return False

    async def _secret(self, name: str, key: str) -> str:
        """Return the value of the key. Raises LookupError in the words of a kubelet."""
        try:
            found = await self.api.get(f"{self.path('secrets')}/{name}", dict[str, Any])
        except errors.NotFound as error:
            raise LookupError(f'secret "{name}" not found') from error
        if key not in found.get("data", {}):
            raise LookupError(f"couldn't find key {key} in Secret {self.namespace}/{name}")
        return base64.b64decode(found["data"][key]).decode()

    async def _volume(self, folder: Path, said: Mapping[str, Any]) -> Path:
        """Make the volume's folder. A claim is one folder for all pods."""
        if "persistentVolumeClaim" in said:
            place = self.folder / "claims" / said["persistentVolumeClaim"]["claimName"]
            place.mkdir(parents=True, exist_ok=True)
            return place
        place = folder / "volumes" / said["name"]
        place.mkdir(parents=True)
        if "secret" in said:
            path = f"{self.path('secrets')}/{said['secret']['secretName']}"
            data = (await self.api.get(path, dict[str, Any]))["data"]
            for item in said["secret"]["items"]:
                (place / item["path"]).write_bytes(base64.b64decode(data[item["key"]]))
        return place

    def _places(self, container: Mapping[str, Any], volumes: Mapping[str, Path]) -> dict[str, str]:
        mounts = {one["mountPath"]: str(_mounted(volumes, one)) for one in container.get("volumeMounts", [])}
        return {**self.paths, **{path: place for path, place in mounts.items() if path != "/dev/shm"}}

    def _translate(self, folder: Path, volumes: Mapping[str, Path], spec: Mapping[str, Any]) -> None:
        """Let the delivered files name the folders."""
        container = next((one for one in spec["containers"] if one["name"] == rendering.TASK), None)
        if container is None:
            return  # the pod is not a task's
        for path in (volumes["task"]).glob("*.json"):
            text = path.read_text().replace(rendering.TERMINATION_LOG, str(self._log(folder, rendering.TASK)))
            path.write_text(translated(text, self._places(container, volumes)))

    def _move_ports(self, pod: objects.Pod, volumes: Mapping[str, Path]) -> None:
        """Give the task the ports of its gang."""
        key = podstates.key(pod)
        path = volumes["task"] / "assignment.json" if "task" in volumes else None
        if key is None or path is None or not path.exists():
            return
        if (key.job, key.attempt) not in self._ports:
            self._ports[key.job, key.attempt] = gang_ports()
        first = self._ports[key.job, key.attempt]
        said = json.loads(path.read_bytes())
        said["ports"] = [first + number for number in range(len(said["ports"]))]
        assert len(said["ports"]) <= PORTS_OF_GANG
        path.write_text(json.dumps(said))

    async def _contain(
        self, folder: Path, container: Mapping[str, Any], volumes: Mapping[str, Path], uid: str, address: str
    ) -> int:
        if uid in self._ending:
            return ENDED_CODE
        places = self._places(container, volumes)
        temporary = tempfile.mkdtemp(prefix="pod-")  # a short name: sockets lie in it
        self._temporary.setdefault(uid, []).append(temporary)
        env = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "LANG": "C.UTF-8", "TMPDIR": temporary, MARK: uid}
        for one in container.get("env", []):
            env[one["name"]] = translated(one["value"], places) if "value" in one else address
        env |= self._plugged(int(container["resources"].get("limits", {}).get(cluster.GPU, 0)))
        self._environments[folder.name, container["name"]] = env, places
        command = [translated(word, places) for word in container["command"]]
        with (folder / f"{container['name']}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, env=env, cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._first.setdefault(uid, []).append(process)
        code = await process.wait()
        return code if code >= 0 else 128 - code

    def _plugged(self, gpus: int) -> dict[str, str]:
        """Return the variable by which a device plugin gives a container GPUs of its choice."""
        given = [f"GPU-{uuid.uuid4()}" for _ in range(gpus)]
        self.plugged += given
        return {"NVIDIA_VISIBLE_DEVICES": ",".join(given)} if given else {}

    def _log(self, folder: Path, name: str) -> Path:
        return folder / f"termination-{name}"

    def _lines(self, folder: Path, name: str) -> str:
        """Return the end of the output, which `terminationMessagePolicy: FallbackToLogsOnError` asks for."""
        return (folder / f"{name}.log").read_text(errors="replace")[-2048:] if name == reaching.CONTAINER else ""

    def _said(self, folder: Path, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self._log(folder, name).read_text()[:TERMINATION_BYTES]
        return ""


def _mounted(volumes: Mapping[str, Path], mount: Mapping[str, Any]) -> Path:
    """Return the folder of the mount. A kubelet makes the folder of a `subPath` that is not there: as root."""
    place = volumes[mount["name"]] / mount.get("subPath", "")
    assert place.is_dir(), f"the task could not write into {place}"
    return place


def translated(text: str, places: Mapping[str, str]) -> str:
    """Return the text with the places of this machine, the longest path first."""
    for path in sorted(places, key=len, reverse=True):
        text = text.replace(path, places[path])
    return text


def gang_ports() -> int:
    """Return the first of some neighbouring ports at which nothing listens, at any address of this machine."""
    while True:
        first = next(_own_ports())
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + PORTS_OF_GANG):
                stack.enter_context(socket.create_server(("", port)))
            return first


@functools.cache
def _own_ports() -> Iterator[int]:
    """Return the first ports of gangs, again and again, in a part of `PORTS` that no other process takes while this
    one lives: a gang listens at its ports long after they were chosen.
    """
    place = Path(tempfile.gettempdir()) / "oarlock-test-ports"
    place.mkdir(exist_ok=True)
    while True:
        for first in range(PORTS.start, PORTS.stop - PORTS_OF_PROCESS + 1, PORTS_OF_PROCESS):
            lock = os.open(place / str(first), os.O_CREAT | os.O_RDWR)  # it stays open
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return itertools.cycle(range(first, first + PORTS_OF_PROCESS, PORTS_OF_GANG))
        time.sleep(1.0)


def marked(uid: str) -> Iterator[int]:
    """Yield the processes of the pod."""
    mark = f"{MARK}={uid}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (place / "environ").read_bytes().split(b"\0"):
                yield int(place.name)


def kill(uid: str) -> None:
    """End all processes of the pod. One may fork meanwhile, so that an empty look ends it."""
    for _ in range(6000):
        found = list(marked(uid))
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.01)


class Commands:
    """The part of a kubelet that starts commands in running pods (`exec`), as Kubernetes 1.20 has it."""

    def __init__(self, running: RunningCluster, folder: Path) -> None:
        self._cluster = running
        self._folder = folder
        self._server: sockets.Server | None = None

    async def open(self) -> int:
        """Listen, and return the port. The API server trusts any certificate of a kubelet."""
        await asyncio.to_thread(self._certify)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self._folder / "kubelet.crt", self._folder / "kubelet.key")
        self._server = await sockets.serve(
            self._command, "127.0.0.1", 0, ssl=tls, subprotocols=[websockets.Subprotocol("v4.channel.k8s.io")]
        )
        port: int = next(iter(self._server.sockets)).getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def _certify(self) -> None:
        names = ["-out", str(self._folder / "kubelet.crt"), "-keyout", str(self._folder / "kubelet.key")]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kubelet", *names]
        subprocess.run(command, check=True, capture_output=True)

    async def _command(self, socket: sockets.ServerConnection) -> None:
        assert socket.request is not None
        asked = urlparse(socket.request.path)
        _, _, _, pod, container = asked.path.split("/")
        process = await self._cluster.start_in(pod, container, parse_qs(asked.query)["command"])
        with contextlib.suppress(websockets.ConnectionClosed):
            await self._converse(socket, process)

    async def _converse(self, socket: sockets.ServerConnection, process: asyncio.subprocess.Process) -> None:
        reading = asyncio.create_task(self._feed(socket, process))
        await asyncio.gather(*(self._tell(socket, number, stream) for number, stream in
                               ((commands.STDOUT, process.stdout), (commands.STDERR, process.stderr))))  # fmt: skip
        code = await process.wait()
        reading.cancel()
        causes = [{"reason": "ExitCode", "message": str(code)}]
        failure = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
        status = json.dumps(failure if code else {"status": "Success"}).encode()
        await socket.send(bytes([commands.STATUS]) + status)

    async def _feed(self, socket: sockets.ServerConnection, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        async for message in socket:
            if isinstance(message, bytes) and message[0] == commands.STDIN:
                process.stdin.write(message[1:])
                await process.stdin.drain()
        process.stdin.close()  # the client has left

    async def _tell(self, socket: sockets.ServerConnection, number: int, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        while data := await stream.read(65536):
            await socket.send(bytes([number]) + data)
