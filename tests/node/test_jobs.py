"""Jobs on a cluster that runs pods, through the server that docs/kubernetes.md installs in it."""

from __future__ import annotations

import contextlib
import json
import re

import httpx
import pytest
from tests.node import conftest
from tests.node.conftest import Site

from oarlock.spec import errors

pytestmark = pytest.mark.node

DIGITS = conftest.blocks.ROOT / "examples" / "01-digits"
EPOCHS = 12
"""They reach 0.97, and take minutes at most where many other programs run."""


def accuracy(site: Site, name: str) -> float:
    said = site.do("logs", name).stdout
    found = re.findall(r"test accuracy ([0-9.]+) on 359 images, \d+ steps on 2 workers", said)
    assert found, said
    return float(found[-1])


def train(site: Site, name: str) -> None:
    """Start the training of the digits by two workers. The first attempt is slow, so that a test can stop it midway."""
    text = (DIGITS / "oarlock.yaml").read_text()
    text = (
        text.replace("cpus: 1", "cpus: 0.5")
        .replace("name: digits", f"name: {name}")
        .replace("--epochs 20", f"--epochs {EPOCHS}")
    )
    step = "        logits = model(x)\n"
    script = (DIGITS / "train.py").read_text()
    assert step in script
    slow = '        __import__("time").sleep(session.step > 40 and os.environ["OARLOCK_ATTEMPT"] == "1")\n'
    site.write("train.py", script.replace(step, slow + step))
    site.write(f"{name}.yaml", text.replace("every: 10s", "every: 3s"))
    site.do("submit", f"{name}.yaml")


def saved(site: Site, name: str) -> bool:
    with contextlib.suppress(errors.Unavailable), site.client() as client:
        return bool(client.checkpoints(name))
    return False


def attempts(site: Site, name: str) -> list[int]:
    return [attempt["number"] for attempt in site.job(name)["attempts"]]


def gone(site: Site) -> None:
    site.until(lambda: not site.pods(), "the pods of all jobs are gone")


def test_the_page_leads_from_a_bare_cluster_to_a_trained_model(site: Site) -> None:
    """Every command of the page has run, as printed. The server inside the cluster has TLS, and the fewest rights."""
    assert accuracy(site, "digits") >= 0.97
    job = site.job("digits")
    assert job["phase"] == "COMPLETED"
    assert len(job["attempts"]) == 1
    gone(site)
    assert "test accuracy" in site.do("logs", "digits").stdout, "logs outlive the pods"


def test_halt_and_resume_continue_from_the_checkpoint(site: Site) -> None:
    train(site, "halted")
    site.until(lambda: saved(site, "halted"), "the first checkpoint")
    site.do("halt", "halted")
    site.wait_phase("halted", "HALTED", timeout_s=conftest.PATIENCE_S)
    assert not [pod for pod in site.pods() if site.job("halted")["id"] in pod["metadata"]["name"]]
    site.do("resume", "halted")
    site.wait_phase("halted", "COMPLETED", "FAILED", timeout_s=conftest.PATIENCE_S)
    assert accuracy(site, "halted") >= 0.97
    assert attempts(site, "halted") == [1, 2]
    steps = [int(number) for number in re.findall(r"(\d+) steps on 2 workers", site.do("logs", "halted").stdout)]
    assert steps == [EPOCHS * 22], "the second attempt went on where the first was halted, and ended at the same step"
    began = site.do("logs", "halted", "--attempt", "2").stdout
    assert "epoch 1 " not in began


def test_the_gang_of_a_killed_worker_restarts(site: Site) -> None:
    train(site, "killed")
    site.until(lambda: saved(site, "killed"), "the first checkpoint")
    (victim,) = [
        pod["metadata"]["name"]
        for pod in site.pods()
        if pod["metadata"]["name"].startswith(site.job("killed")["id"].lower())
        and pod["metadata"]["labels"]["oarlock.dev/index"] == "1"
    ]
    site.kubectl("delete", "pod", victim, "--namespace", conftest.JOBS, "--grace-period", "0", "--force")
    site.wait_phase("killed", "COMPLETED", "FAILED", timeout_s=conftest.PATIENCE_S)
    assert accuracy(site, "killed") >= 0.97
    assert attempts(site, "killed") == [1, 2]
    assert site.job("killed")["restarts"] == 0, "the platform's fault spends no restart"


def test_an_image_without_python_runs_a_command(site: Site) -> None:
    """Logs, the exit code and new files come out; they stay once the pods are gone."""
    site.write(
        "plain.yaml",
        """
        name: plain
        framework: plain
        image: registry.example/plain:1
        command: "! command -v python3 && id -u && echo kept > new.txt && exit 3"
        max_restarts: 0
        """,
    )
    done = site.do("submit", "plain.yaml", "--follow", code=3)
    assert "10001" in done.stdout
    gone(site)
    site.do("download", "plain", "--to", "fetched")
    (kept,) = (site.work / "fetched").rglob("new.txt")
    assert kept.read_text() == "kept\n"


def static(site: Site, name: str, *words: str) -> None:
    site.write(
        f"{name}.yaml",
        f"""
        name: {name}
        framework: plain
        image: registry.example/static:1
        command: {json.dumps(["/tool", *words])}
        max_restarts: 0
        grace: 1s
        """,
    )


def test_an_image_of_one_static_program_has_logs_results_and_an_exit_code(site: Site) -> None:
    static(site, "tiny", "work", "out.txt")
    done = site.do("submit", "tiny.yaml", "--follow")
    assert "work in an image with one file, user 10001" in done.stdout
    gone(site)
    site.do("download", "tiny", "--to", "tiny-files")
    (result,) = (site.work / "tiny-files").rglob("out.txt")
    assert result.read_text() == "made by the tool\n"
    static(site, "tiny-fails", "fail")
    site.do("submit", "tiny-fails.yaml", "--follow", code=7)


def test_an_image_of_one_static_program_can_be_killed(site: Site) -> None:
    static(site, "tiny-waits", "wait")
    site.do("submit", "tiny-waits.yaml")
    site.wait_phase("tiny-waits", "PROCESSING", timeout_s=conftest.PATIENCE_S)
    site.do("cancel", "tiny-waits")
    site.wait_phase("tiny-waits", "CANCELED", timeout_s=conftest.PATIENCE_S)
    gone(site)
    assert "wait in an image with one file" in site.do("logs", "tiny-waits").stdout


def test_an_mpi_job_computes_over_two_pods(site: Site) -> None:
    """The image has Open MPI, and no sshd. A failing rank gives the job its code."""
    site.write(
        "mpi.yaml",
        """
        name: ranks
        framework: mpi
        image: registry.example/mpi:1
        command: mpirun python3 /sum.py
        roles: {worker: {count: 2, cpus: 0.5, memory: 256Mi}}
        """,
    )
    said = site.do("submit", "mpi.yaml", "--follow").stdout
    found = sorted(re.findall(r"rank \d of 2 in worker \d has the sum \d", said))
    assert found == ["rank 0 of 2 in worker 0 has the sum 3", "rank 1 of 2 in worker 1 has the sum 3"], said
    site.write(
        "mpi-fails.yaml",
        """
        name: ranks-fail
        framework: mpi
        image: registry.example/mpi:1
        command: mpirun sh -c 'exit $((OMPI_COMM_WORLD_RANK * 7))'
        roles: {worker: {count: 2, cpus: 0.5, memory: 256Mi}}
        max_restarts: 0
        """,
    )
    site.do("submit", "mpi-fails.yaml", "--follow", code=7)
    gone(site)


def test_a_command_runs_inside_a_task(site: Site) -> None:
    site.write(
        "looked-into.yaml",
        """
        name: looked-into
        framework: plain
        image: registry.example/plain:1
        command: touch here; sleep 600
        grace: 1s
        """,
    )
    site.do("submit", "looked-into.yaml")
    site.wait_phase("looked-into", "PROCESSING", timeout_s=conftest.PATIENCE_S)
    site.until(
        lambda: site.do("exec", "looked-into", "--", "ls", "here", code=None).returncode == 0, "the file is there"
    )
    done = site.do("exec", "looked-into", "--", "sh", "-c", "echo $OARLOCK_JOB; ls here; exit 7", code=7)
    assert done.stdout.split() == [site.job("looked-into")["id"], "here"]
    site.do("cancel", "looked-into")
    site.wait_phase("looked-into", "CANCELED", timeout_s=conftest.PATIENCE_S)


def test_tensorboard_runs_beside_a_job_in_the_image_of_the_installation(site: Site) -> None:
    """The page of its program, and the curve of the job, come through the server in the cluster."""
    site.write(
        "curves.py",
        """
        import time, torch
        from oarlock import train
        train.init()
        with train.Session(model=torch.nn.Linear(1, 1), total_steps=100_000) as session:
            for step in session.steps():
                session.log(loss=1.0 / (step + 1))
                time.sleep(0.1)
        """,
    )
    site.write(
        "curves.yaml",
        """
        name: curves
        command: python curves.py
        tensorboard: true
        grace: 1s
        roles: {worker: {count: 1, cpus: 0.5}}
        """,
    )
    site.do("submit", "curves.yaml")
    pod = f"{site.job('curves')['id'].lower()}-1-tensorboard"
    with site.start("tensorboard", "curves", "--port", "0") as command:
        try:
            assert command.stdout is not None
            url = command.stdout.readline().strip()
            assert url.startswith("http://localhost:"), (url, command.stderr and command.stderr.read())
            site.until(lambda: "loss" in read(f"{url}data/plugin/scalars/tags"), "the curve of the job")
            assert "<title>TensorBoard</title>" in read(url)
            (there,) = [one for one in site.pods() if one["metadata"]["name"] == pod]
            (program,) = [one for one in there["status"]["containerStatuses"] if one["name"] == "tensorboard"]
            assert (program["image"], program["restartCount"]) == ("registry.example/tensorboard:1", 0)
            site.do("cancel", "curves", "--wait")
            gone(site)
            assert command.wait(conftest.PATIENCE_S) == 0, "the command ends with the job"
        finally:
            command.kill()


def read(url: str) -> str:
    """Return what is said there; nothing where TensorBoard does not answer yet."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=conftest.PATIENCE_S, trust_env=False).text
    return ""


def test_a_job_goes_on_while_the_server_moves(site: Site) -> None:
    """The pod of the server is deleted; the next one takes the job over, with its logs."""
    site.write(
        "outlives.yaml",
        """
        name: outlives
        framework: plain
        image: registry.example/plain:1
        command: echo before; while [ ! -e /oarlock/home/release ]; do sleep 0.2; done; echo after
        """,
    )
    site.do("submit", "outlives.yaml")
    site.wait_phase("outlives", "PROCESSING", timeout_s=conftest.PATIENCE_S)
    (pod,) = site.pods()
    site.kubectl("delete", "pod", "--namespace", conftest.SERVER, "--selector", "app.kubernetes.io/name=oarlock")
    site.kubectl(
        "exec",
        "--namespace",
        conftest.JOBS,
        pod["metadata"]["name"],
        "--container",
        "task",
        "--",
        "touch",
        "/oarlock/home/release",
    )
    site.forward()
    site.wait_phase("outlives", "COMPLETED", "FAILED", timeout_s=conftest.PATIENCE_S)
    assert site.do("logs", "outlives").stdout.split() == ["before", "after"]
    assert attempts(site, "outlives") == [1]


def test_one_user_does_not_reach_the_job_of_another(site: Site) -> None:
    """Neither by the server nor by kubectl."""
    token = site.do("users", "add", "bea").stdout.split()[-1]
    bea = {
        **site.env,
        "OARLOCK_HOME": str(site.home.parent / "bea"),
        "OARLOCK_TOKEN": token,
        "OARLOCK_SERVER": conftest.URL,
    }
    site.env, kept = {**bea, "OARLOCK_CA_FILE": str(authority(site))}, site.env
    try:
        for words in (("show",), ("logs",), ("files",), ("cancel",)):
            assert "digits" in site.do(*words, "digits", code=1).stderr
        assert "digits" not in site.do("ps", "--all").stdout
    finally:
        site.env = kept
    for verb, kind in (("list", "pods"), ("create", "pods/exec"), ("get", "secrets"), ("delete", "pods")):
        for namespace in (conftest.JOBS, conftest.SERVER):
            words = ("auth", "can-i", verb, kind, "--namespace", namespace, "--as", "bea")
            assert site.kubectl(*words, check=False).strip() == "no", words


def test_the_doctor_works_in_the_pod_of_the_server(site: Site) -> None:
    """The command is the page's: it looks for the rights, pulls the images, and lets a pod reach the server."""
    text = conftest.PAGE.read_text()
    (command,) = re.findall(r"^`kubectl (.* oarlock doctor --backend kubernetes)`$", text, re.MULTILINE)
    said = site.kubectl(*command.split()).splitlines()
    assert {line.split()[0] for line in said} == {"ok"}, said
    checked = [line.split()[1] for line in said]
    assert {"cluster:", "rights:", "nodes:", "server:"} <= set(checked), said
    assert checked.count("images:") == 3, said


def authority(site: Site) -> conftest.Path:
    return conftest.Path(json.loads((site.home / "login.json").read_text())["ca_file"])


def test_nothing_of_any_job_stays_in_the_cluster(site: Site) -> None:
    """The last test: all jobs have ended."""
    site.until(lambda: not site.pods(), "all pods are gone")
    left = [one["metadata"]["name"] for one in site.objects("secrets", "--namespace", conftest.JOBS)]
    assert not [name for name in left if name.startswith("j-")]
