"""The GPUs that a device plugin has given to a container, as its variables or a stand-in of nvidia-smi tell them."""

import os
import subprocess
import threading

import pytest

from oarlock.agent.protocol import gpus

ONE = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
TWO = "GPU-0b0b0b0b-d33d-2b2c-524d-9e3d8d2b8a77"
PART = "MIG-a5c1b2d3-d33d-5b2c-924d-9e3d8d2b8a77"
OLD_PART = f"MIG-{ONE}/7/0"
AMD = "0xEF2C1799A1F3E2ED"


@pytest.mark.parametrize(
    ("count", "environ", "listed", "found"),
    [
        (0, {"NVIDIA_VISIBLE_DEVICES": ONE}, "", []),
        (2, {"NVIDIA_VISIBLE_DEVICES": f"{TWO},{ONE}"}, "", [TWO, ONE]),
        (1, {"NVIDIA_VISIBLE_DEVICES": PART}, "", [PART]),
        (1, {"NVIDIA_VISIBLE_DEVICES": OLD_PART}, "", [OLD_PART]),
        (1, {"NVIDIA_VISIBLE_DEVICES": "0"}, f"GPU 0: NVIDIA A100 (UUID: {ONE})\n", [ONE]),
        (1, {"NVIDIA_VISIBLE_DEVICES": "void"}, f"GPU 0: NVIDIA A100 (UUID: {ONE})\n", [ONE]),
        (1, {}, f"GPU 0: A100 (UUID: {ONE})\n  MIG 1g.5gb Device 0: (UUID: {PART})\n", [PART]),
        (1, {"NVIDIA_VISIBLE_DEVICES": "all"}, f"GPU 0: A (UUID: {ONE})\nGPU 1: A (UUID: {TWO})\n", []),
        (1, {"NVIDIA_VISIBLE_DEVICES": "all"}, "No devices were found\n", []),
        (1, {"AMD_VISIBLE_DEVICES": AMD}, "", [AMD]),
        (1, {"AMD_VISIBLE_DEVICES": "0"}, "", []),
        (1, {}, "", []),
    ],
)
def test_the_gpus_are_known_where_their_number_is_right(tmp_path, count, environ, listed, found):
    if listed:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '%s' '{listed}'\nexit 3\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    assert gpus.uuids(count, {"PATH": str(tmp_path), **environ}) == found


def test_the_plugin_may_name_them_by_the_entries_of_a_folder(tmp_path):
    for name in (ONE, TWO):
        (tmp_path / name).touch()
    assert gpus.uuids(2, {"PATH": "", "NVIDIA_VISIBLE_DEVICES": str(tmp_path)}) == [TWO, ONE]
    assert gpus.uuids(2, {"PATH": "", "NVIDIA_VISIBLE_DEVICES": f"{tmp_path}/missing"}) == []


def test_a_question_that_no_signal_ends_holds_nothing_up(tmp_path, monkeypatch):
    """As one that waits within the driver. Here the signal is not sent."""
    monkeypatch.setattr(gpus, "ASK_S", 0.2)
    kill = subprocess.Popen.kill
    kept = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: kept.append(process))
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 20\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert gpus.uuids(1, {"PATH": f"{tmp_path}:{os.environ['PATH']}"}) == []
    (process,) = kept
    assert process.returncode is None, "it runs still"
    kill(process)
    for thread in threading.enumerate():
        if thread.name == "nvidia-smi":
            thread.join()
    assert process.returncode == -9, "it is waited for once it ends"
