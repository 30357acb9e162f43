"""The installation keeps checkpoints in an object store. The server has the credentials, and signs for its tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from tests import objectstores
from tests.backends.kubernetes.testcluster import apiserver, kubelet
from tests.e2e import separate
from tests.e2e.kubernetes import pods

pytestmark = apiserver.needed


KEYS = "import os\nprint('keys:', [name for name in os.environ if name.startswith('AWS')])\n"


def listed(shell: pods.PodShell) -> list[str]:
    with shell.client() as client:
        return [one.path for one in client.checkpoints("first")]


@pytest.fixture
def shell(
    tmp_path_factory: pytest.TempPathFactory,
    api_server: apiserver.ApiServer,
    bucket: objectstores.Bucket,
) -> Iterator[pods.PodShell]:
    with pods.opened(tmp_path_factory.mktemp("user"), api_server, bucket=bucket) as one:
        yield one


def test_the_doctor_tries_the_place(shell: pods.PodShell, bucket: objectstores.Bucket) -> None:
    said = shell.do("doctor", "--backend", "kubernetes", code=None).stdout
    assert f"{bucket.url}/kept can keep checkpoints" in said
    shell.env["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    said = shell.do("doctor", "--backend", "kubernetes", code=1).stdout
    assert f"{bucket.url}/kept cannot keep checkpoints: an object cannot be written: ConnectError" in said


@pytest.mark.timeout(1800)
def test_checkpoints_of_a_job_that_names_no_place(shell: pods.PodShell, bucket: objectstores.Bucket) -> None:
    """Two pods without a volume save, are killed, and go on. Another job continues from theirs. No pod has a key."""
    shell.write("torn.py", KEYS + separate.program(killed=1, more=190))
    shell.write(
        "first.yaml",
        """
        name: first
        command: python torn.py
        roles: {worker: {count: 2, cpus: 0.5}}
        checkpoint: {keep: 2}
        max_restarts: 5
        grace: 2s
        """,
    )
    bucket.gate.hold("PUT", r"step-(?!10/)\d+/rank-1\.pt", done=False)  # of the second checkpoint
    shell.do("submit", "first.yaml")
    assert bucket.gate.reached.wait(separate.PATIENCE_S)
    assert "AWS_" not in json.dumps(shell.raw("pods"))
    shell.wait_for("first", lambda _: bool(listed(shell)), timeout_s=separate.PATIENCE_S)
    assert separate.whole(bucket) == [10]
    kubelet.kill(shell.uid("first", "worker", 1))
    bucket.gate.release()
    job = shell.wait_phase("first", "COMPLETED", "FAILED", timeout_s=separate.PATIENCE_S)
    logs = shell.do("logs", "first").stdout
    assert job["phase"] == "COMPLETED", logs
    assert len(job["attempts"]) == 2
    resumed = {int(step) for step in re.findall(r"resumed from \S*step-(\d+)", logs)}
    assert resumed == {10}, "the second attempt begins where the first one has saved"
    assert separate.whole(bucket)[-1] == 200
    assert len(separate.whole(bucket)) == 2, "no more stay than the job keeps"
    assert all(key.startswith(f"kept/{job['id']}/attempt-") for key in bucket.keys(""))
    assert set(re.findall(r"keys: (\[.*\])", logs)) == {"[]"}

    one = listed(shell)[0].rpartition("/")[2]
    shell.do("download", "first", f"checkpoints/{one}", "--to", "fetched")
    stored = {key.rpartition("/")[2]: bucket.get(key) for key in bucket.keys("") if f"/{one}/" in key}
    fetched = {path.name: path.read_bytes() for path in (shell.work / "fetched").rglob("*") if path.is_file()}
    assert fetched == stored, "the user fetches a checkpoint through the server"

    before = {key: bucket.get(key) for key in bucket.keys("")}
    shell.write("torn.py", separate.program(killed=0, more=20))
    shell.write("second.yaml", "name: second\ncommand: python torn.py\nroles: {worker: {count: 2, cpus: 0.5}}\n")
    shell.do("submit", "second.yaml", "--continue", "first")
    second = shell.wait_phase("second", "COMPLETED", "FAILED", timeout_s=separate.PATIENCE_S)
    logs = shell.do("logs", "second").stdout
    assert second["phase"] == "COMPLETED", logs
    assert re.search(r"resumed from \S*step-200", logs), logs
    assert {key: bucket.get(key) for key in before} == before, "the other job's checkpoints stay as they are"
    assert any(key.startswith(f"kept/{second['id']}/") for key in bucket.keys(""))


STOPPED = """
import os
import time

import torch
from oarlock import train
from torch import nn

world = train.init()
model = train.data_parallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = 1_000_000 if os.environ["OARLOCK_ATTEMPT"] == "1" else 1
with train.Session(model=model, optimizer=optimizer, total_steps=total, every_steps=total) as session:
    for step in session.steps():
        if step == 3:
            print("rank", world.rank, "trains", flush=True)
        time.sleep(0.05)
train.shutdown()
"""


@pytest.mark.timeout(1800)
def test_the_last_checkpoint_of_a_pod_that_is_deleted(shell: pods.PodShell, bucket: objectstores.Bucket) -> None:
    """As by a drain or by `kubectl delete pod`: the kubelet sends SIGTERM to the agent and to its helper at once. The
    ranks save within the grace, and the helper stores it.
    """
    shell.write("stopped.py", STOPPED)
    shell.write(
        "stopped.yaml",
        """
        name: stopped
        command: python stopped.py
        roles: {worker: {count: 2, cpus: 0.5}}
        grace: 200s
        """,
    )
    shell.do("submit", "stopped.yaml")
    shell.until(lambda: shell.do("logs", "stopped", code=None).stdout.count("trains") == 2, "both ranks train")
    assert bucket.keys("") == []
    shell.delete_pod("stopped", "worker", 1)
    job = shell.wait_phase("stopped", "COMPLETED", "FAILED", timeout_s=separate.PATIENCE_S)
    logs = shell.do("logs", "stopped").stdout
    assert job["phase"] == "COMPLETED", logs
    assert len(job["attempts"]) == 2
    (step,) = {int(step) for step in re.findall(r"resumed from \S*step-(\d+)", logs)}
    assert step > 3, "the steps of the first attempt are not lost"
