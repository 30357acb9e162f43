"""The GPUs in the container of the task, by UUID: the device plugin of the platform chooses them, not the server.

    NVIDIA_VISIBLE_DEVICES   UUIDs; or the folder in which the plugin has put an entry named by each UUID
    AMD_VISIBLE_DEVICES      UUIDs
    nvidia-smi -L            where the variables say nothing: devices by the Container Device Interface, by their index

An answer with another number of GPUs than the task holds is about other devices, and counts as none.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ASK_S = 10.0
"""The longest time for nvidia-smi: without a daemon of its own, the driver begins with each question."""
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{8,90}|0x[0-9A-Fa-f]{8,32}")
_LISTED = re.compile(r"UUID: ((?:GPU|MIG)-[0-9A-Za-z/-]{8,90})\)")


def uuids(count: int, environ: Mapping[str, str]) -> list[str]:
    """Return the UUIDs of the `count` GPUs of this container; an empty list where they are not known."""
    if count <= 0:
        return []
    for found in (_named(environ.get("NVIDIA_VISIBLE_DEVICES", "")), _named(environ.get("AMD_VISIBLE_DEVICES", ""))):
        if len(found) == count:
            return found
    found = _listed(environ)
    return found if len(found) == count else []


def _named(value: str) -> list[str]:
    words = value.split(",")
    if value.startswith("/"):
        try:
            words = sorted(os.listdir(value))
        except OSError:
            return []
    return [word.strip() for word in words if _UUID.fullmatch(word.strip())]


def _listed(environ: Mapping[str, str]) -> list[str]:
    """Return the GPUs that nvidia-smi lists: the parts (MIG), where there are some. Its exit code does not matter."""
    try:
        asked = subprocess.Popen(
            ["nvidia-smi", "-L"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
        )
    except OSError:
        return []
    try:
        told, _ = asked.communicate(timeout=ASK_S)
    except subprocess.TimeoutExpired:
        _abandon(asked)
        return []
    found = _LISTED.findall(told.decode(errors="replace"))
    return [one for one in found if one.startswith("MIG-")] or found


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill the process. A thread waits for its end: in the driver a call may never end, and no signal ends it."""
    process.kill()
    if process.stdout is not None:
        process.stdout.close()
    threading.Thread(target=process.wait, name="nvidia-smi", daemon=True).start()
