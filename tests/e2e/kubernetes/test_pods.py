"""The life of a job in pods: the real server, API server and agents; only the kubelet is ours (`kubelet`)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import cast

import httpx
import msgspec
import pytest
import yaml
from tests import needs, objectstores
from tests.agent import test_reach
from tests.backends.kubernetes.testcluster import apiserver
from tests.e2e import shell as shells
from tests.e2e import test_life, test_surroundings
from tests.e2e.files import test_checkpoints, test_files
from tests.e2e.kubernetes import pods

from oarlock.api.process import homefolder
from oarlock.backends.kubernetes import examining
from oarlock.backends.kubernetes.pods import boards, rendering
from oarlock.controllers.guarding import launching

pytestmark = apiserver.needed


@pytest.fixture(scope="module")
def clusters(
    tmp_path_factory: pytest.TempPathFactory,
    api_server: apiserver.ApiServer,
) -> Iterator[pods.Clusters[pods.PodShell]]:
    with pods.shared(lambda: pods.opened(tmp_path_factory.mktemp("user"), api_server)) as made:
        yield made


@pytest.fixture
def shell(clusters: pods.Clusters[pods.PodShell], request: pytest.FixtureRequest) -> Iterator[pods.PodShell]:
    with clusters.serving(request.node) as one:
        yield one


def test_a_failed_test_spoils_its_own_cluster_alone_and_the_third_cluster_is_not_made(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods.Clusters, "MOST", 2)
    made = []

    @contextlib.contextmanager
    def opened() -> Iterator[pods.PodShell]:
        made.append("open")
        yield cast(pods.PodShell, object())
        made.append("closed")

    tests = [pytest.Function.from_parent(request.node.parent, name=f"t{n}", callobj=opened) for n in range(4)]
    clusters = pods.Clusters(opened)
    for test, fails in zip(tests, (False, True, True, False), strict=True):
        if test is tests[3]:
            with pytest.raises(pytest.fail.Exception, match="not tried: t1 and t2 failed"), clusters.serving(test):
                pass
            break
        with clusters.serving(test):
            test.stash[shells.FAILED] = fails
    assert made == ["open", "closed", "open", "closed"]


def test_the_command_of_the_laptop_runs_in_pods(shell: pods.PodShell) -> None:
    """Code goes in; logs of both tasks and the exit code come out; each finds the other at the address of its pod."""
    shell.write(
        "hello.py",
        """
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        print("rank", os.environ["RANK"], "of", int(total), "at", os.environ["MASTER_ADDR"], flush=True)
        dist.destroy_process_group()  # gloo may abort a process that ends without this
        """,
    )
    done = shell.do("run", "--workers", "2", "--name", "hello", "--", "python", "hello.py")
    assert "rank 0 of 2 at 127." in done.stdout
    assert "rank 1 of 2 at 127." in done.stdout
    assert {task["node"] for task in shell.job("hello")["attempts"][0]["tasks"]} <= {
        shell.cluster.node("n1"),
        shell.cluster.node("n2"),
    }


def test_a_server_that_pods_do_not_reach_does_not_start(shell: pods.PodShell) -> None:
    """A pod has tried it, and the error names the way out. The server of the other tests has passed the same check."""
    assert [name for name in shell.cluster.starts if name.startswith("oarlock-reach-")], "the check has run"
    (closed,) = apiserver.free_ports(1)
    home = shell.home.parent / "unreached"
    home.mkdir()
    settings = (shell.home / "config.toml").read_text()
    settings = settings.replace(f"port = {shell.port}", "port = 0").replace(str(shell.port), str(closed))
    (home / "config.toml").write_text(settings)
    program = "from oarlock.backends.kubernetes import reaching; reaching.PATIENCE_S = 0; from oarlock import main"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; import sys; sys.exit(main.main(['--backend', 'kubernetes']))"],
        env={**shell.env, "OARLOCK_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"pods do not reach the server at http://127.0.0.1:{closed}: ConnectionRefusedError" in done.stderr
    assert '"Install" in docs/kubernetes.md' in done.stderr
    assert not (home / "server.json").exists()


def test_the_manifests_of_a_plan_are_those_of_the_launch(shell: pods.PodShell) -> None:
    shell.write("shown.yaml", pods.SHOWN)
    planned = shell.planned("shown.yaml")
    assert [one["kind"] for one in planned] == ["Secret", "Pod", "Pod"]
    assert not any("ownerReferences" in one["metadata"] for one in planned), "nothing owns them here"
    shell.do("submit", "shown.yaml", "--no-snapshot")
    shell.wait_phase("shown", "PROCESSING")
    shell.is_as_planned("shown", planned)
    shell.do("cancel", "shown", "--wait")
    refused = shell.do("plan", "shown.yaml", "--backend", "local", code=1)
    assert "has the backend kubernetes" in refused.stderr


def test_so_are_those_of_a_single_pod_and_of_its_tensorboard(shell: pods.PodShell) -> None:
    """The pod may be created on its node. The server makes the TensorBoard once the job runs."""
    shell.write("shown.yaml", f"{pods.SHOWN.replace('count: 2', 'count: 1')}\ntensorboard: true")
    planned = shell.planned("shown.yaml")
    assert [one["kind"] for one in planned] == ["Secret", "Pod", "Pod", "Secret"]
    assert planned[1]["spec"]["nodeName"] == launching.PLANNED_NODE
    shell.do("submit", "shown.yaml", "--no-snapshot")
    shell.wait_phase("shown", "PROCESSING")
    shell.has_board("shown")
    shell.is_as_planned("shown", planned)
    shell.do("cancel", "shown", "--wait")


def test_so_are_those_of_pods_that_the_stock_scheduler_binds(shell: pods.PodShell) -> None:
    """A claim that not all nodes may mount is one reason. A plan does not know the nodes."""
    shell.write("shown.yaml", f"{pods.SHOWN}\nvolumes: [{{claim: scratch, mount: /scratch}}]")
    missing = shell.do("plan", "shown.yaml", "--backend", "kubernetes", "-o", "yaml", code=None)
    assert missing.returncode != 0
    assert "there is no claim scratch in the namespace" in missing.stderr
    shell.on_cluster(shell.cluster.claim("scratch", accessModes=["ReadWriteOnce"]))
    planned = shell.planned("shown.yaml")
    assert {one["spec"]["schedulerName"] for one in planned if one["kind"] == "Pod"} == {"default-scheduler"}
    shell.do("submit", "shown.yaml", "--no-snapshot")
    shell.until(lambda: len(shell.bind_steered("shown")) == 2, "the scheduler has bound both")
    shell.wait_phase("shown", "PROCESSING")
    shell.is_as_planned("shown", planned)
    shell.do("cancel", "shown", "--wait")


def test_the_gpus_of_a_task_are_those_that_the_device_plugin_chose(shell: pods.PodShell) -> None:
    """The server holds slots of the node; the agent tells which GPUs they are."""
    shell.on_cluster(shell.cluster.add("gpus", gpus=4))
    try:
        shell.until(lambda: bool(shell.json("nodes")["gpu_types"]), "the server knows of the node")
        assert shell.json("nodes")["gpu_types"] == [{"type": "gpu", "gpus": 4, "held": 0.0, "taken": 0.0, "free": 4.0}]
        shell.do("run", "--detach", "--gpus", "2", "--name", "chosen", "--grace", "1s", "--", "sleep", "600")
        job = shell.wait_phase("chosen", "PROCESSING")
        (task,) = job["attempts"][-1]["tasks"]
        assert len(task["gpu_uuids"]) == 2
        assert task["gpu_uuids"] == shell.cluster.plugged
        assert "gpu 4 2 0 2" in " ".join(shell.do("nodes").stdout.split())
        shown = shell.do("show", "chosen").stdout
        assert ",".join(uuid[:12] for uuid in task["gpu_uuids"]) in shown
        shell.do("cancel", "chosen", "--wait")
    finally:
        shell.on_cluster(shell.cluster.remove("gpus"))


def test_the_doctor_examines_the_cluster_and_the_way_to_the_server(shell: pods.PodShell) -> None:
    """The pods of the examination pull the image of the settings, and one asks the server that runs."""
    said = shell.do("doctor", "--backend", "kubernetes", code=None)
    rights = len((*examining.RIGHTS, *examining.OBJECTS))
    for words in (f"all {rights} rights are there", "2 of 2 nodes take tasks", "reach the server at"):
        assert words in said.stdout, f"{said.stdout}\n{said.stderr}"
    assert "do not reach" not in said.stdout
    assert (said.returncode, "No problems." in said.stderr) == (0, True), said.stdout
    assert not [name for name in shell.pod_names() if name.startswith(("oarlock-pull", "oarlock-reach-doctor"))]


def test_the_doctor_trusts_the_authority_of_the_settings(shell: pods.PodShell) -> None:
    """A server with a certificate of its own: the pod that tries to reach it gets the authority from `tls_ca`."""
    home = shell.home.parent / "certified"
    home.mkdir()
    test_reach.certify(home, "https://127.0.0.1")
    settings = (shell.home / "config.toml").read_text()
    settings = settings.replace("[server]", f'[server]\n            tls_ca = "{home}/server.pem"')
    with test_reach.answering(401, test_reach.REFUSAL, home) as port:
        url = f"https://127.0.0.1:{port}"
        (home / "config.toml").write_text(settings.replace(f'server = "http://127.0.0.1:{shell.port}"', ""))
        running = homefolder.ServerFile(
            url=url, pid=os.getpid(), started_at=time.time(), version="1", token_file=str(home / "token")
        )
        (home / "server.json").write_bytes(msgspec.json.encode(running))
        mine, shell.env["OARLOCK_HOME"] = shell.env["OARLOCK_HOME"], str(home)
        try:
            said = shell.do("doctor", "--backend", "kubernetes", code=None)
        finally:
            shell.env["OARLOCK_HOME"] = mine
    assert f"reach the server at {url}" in said.stdout, f"{said.stdout}\n{said.stderr}"
    assert "do not reach" not in said.stdout


def test_tensorboard_runs_beside_the_job_that_asks_for_it(shell: pods.PodShell) -> None:
    """The metrics of the job are on its pages while it trains, through the server alone, and the pod goes with it."""
    shell.write(
        "trains.py",
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
    (free,) = apiserver.free_ports(1)  # the pods of the tests share the loopback address of this machine
    shell.cluster.paths |= {f"--port={boards.PORT}": f"--port={free}", boards.ADDRESS: f"127.0.0.1:{free}"}
    shell.do("run", "--tensorboard", "--detach", "--name", "board", "--grace", "1s", "--", "python", "trains.py")
    pod = f"{shell.job('board')['id']}-1-tensorboard"
    shell.until(lambda: pod in {one.metadata.name for one in shell.secrets()}, "the pod of TensorBoard is made")
    shell.bind(pod, "n1")
    with shell.start("tensorboard", "board", "--port", "0") as command:
        try:
            assert command.stdout is not None
            url = command.stdout.readline().strip()
            assert url.startswith("http://localhost:"), (url, command.stderr and command.stderr.read())
            found: dict[str, object] = {}
            deadline = time.monotonic() + 240
            while "loss" not in str(found):
                assert time.monotonic() < deadline, (found, shell.do("show", "board").stdout)
                time.sleep(1.0)
                with contextlib.suppress(httpx.TransportError):  # it may start anew with the job
                    found = httpx.get(f"{url}data/plugin/scalars/tags", timeout=120, trust_env=False).json()
            assert {"worker-0.0": {"loss": {"displayName": "", "description": ""}}.keys()} == {
                run: tags.keys() & {"loss"} for run, tags in found.items()
            }
            shell.do("cancel", "board", "--wait")
            shell.until(lambda: pod not in shell.pod_names(), "the pod has gone with the job")
            assert command.wait(240) == 0, "the command ends with the job"
        finally:
            command.kill()


def test_a_failing_rank_is_blamed_and_its_lines_outlive_the_pod(shell: pods.PodShell) -> None:
    shell.write(
        "dies.py",
        """
        import os, sys, time
        if os.environ["RANK"] == "1":
            print("the disk of rank 1 is on fire", file=sys.stderr, flush=True)
            sys.exit(3)
        time.sleep(600)
        """,
    )
    done = shell.do("run", "--workers", "2", "--max-restarts", "0", "--name", "dies", "--", "python", "dies.py", code=3)
    verdict = shell.job("dies")["attempts"][-1]["verdict"]
    assert verdict["task"] == "worker-1"
    assert "on fire" in done.stderr
    shell.until(lambda: not shell.pods(), "the pods of all jobs are gone")
    assert "on fire" in shell.do("logs", "dies").stdout
    assert shell.starts("dies") == 2, "a failed gang without restarts runs once"


def test_halt_and_resume_and_cancel(shell: pods.PodShell) -> None:
    """Nothing of a halted or canceled job runs, and a resumed one begins a new attempt."""
    shell.write(
        "waits.py", "import os, time\nprint('attempt', os.environ['OARLOCK_ATTEMPT'], flush=True)\ntime.sleep(600)\n"
    )
    shell.do("run", "--detach", "--workers", "2", "--grace", "1s", "--name", "waits", "--", "python", "waits.py")
    shell.wait_phase("waits", "PROCESSING")
    shell.do("halt", "waits")
    shell.wait_phase("waits", "HALTED")
    assert not shell.processes("waits"), "HALTED is said only once nothing of the job runs"
    shell.do("resume", "waits")
    job = shell.wait_phase("waits", "PROCESSING")
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2]
    shell.do("cancel", "waits")
    shell.wait_phase("waits", "CANCELED")
    assert not shell.processes("waits")
    said = shell.do("logs", "waits", "--attempt", "2").stdout
    assert "attempt 2" in said


def test_a_killed_pod_restarts_the_gang(shell: pods.PodShell) -> None:
    """The platform takes a whole pod away: the gang begins again, and no restart of the job is spent."""
    shell.write(
        "survives.py",
        """
        import os, time
        if os.environ["OARLOCK_ATTEMPT"] == "1":
            time.sleep(600)
        """,
    )
    shell.do("run", "--detach", "--workers", "2", "--name", "survives", "--", "python", "survives.py")
    shell.wait_phase("survives", "PROCESSING")
    shell.delete_pod("survives", "worker", 1)
    job = shell.wait_phase("survives", "COMPLETED", "FAILED")
    assert job["phase"] == "COMPLETED"
    assert [attempt["number"] for attempt in job["attempts"]] == [1, 2]
    assert job["restarts"] == 0


def test_a_restarted_server_finds_the_same_pods(shell: pods.PodShell) -> None:
    """The server is killed while the job runs. The next one takes over the pods; the agents wait for it."""
    release = shell.home.parent / "release"
    shell.write(
        "outlives.py",
        f"""
        import os, time
        print("pid", os.getpid(), flush=True)
        while not os.path.exists({str(release)!r}):
            time.sleep(0.05)
        print("done", flush=True)
        """,
    )
    shell.do("run", "--detach", "--name", "outlives", "--", "python", "outlives.py")
    shell.wait_phase("outlives", "PROCESSING")
    os.kill(shell.server_pid(), signal.SIGKILL)
    release.touch()
    shell.do("up", "--backend", "kubernetes", "--detach")
    job = shell.wait_phase("outlives", "COMPLETED", "FAILED")
    assert job["phase"] == "COMPLETED"
    assert len(job["attempts"]) == 1
    assert shell.do("logs", "outlives").stdout.count("done") == 1
    assert shell.starts("outlives") == 1


@pytest.mark.parametrize(
    "same",
    [
        test_files.test_a_good_job_names_its_new_files_and_gives_them,
        test_files.test_each_attempt_of_a_failing_job_leaves_its_own,
    ],
)
def test_files_outlive_the_pods_as_they_outlive_processes(
    same: Callable[[shells.Shell], None], shell: pods.PodShell
) -> None:
    """The helper sends them to the server; it does not see the server's home."""
    same(shell)


@pytest.mark.parametrize(
    "same",
    [
        test_life.test_halt_keeps_the_checkpoint_and_resume_goes_on,
        test_life.test_a_killed_rank_restarts_the_gang_from_its_checkpoint,
        test_checkpoints.test_mend_the_bug_and_go_on_training,
    ],
)
def test_a_job_continues_from_its_checkpoint_on_the_claim(
    same: Callable[[shells.Shell], None], shell: pods.PodShell
) -> None:
    """The server does not see the claim: the agents verify the checkpoints, and remove old ones."""
    same(shell)


def test_no_more_checkpoints_stay_than_the_job_keeps(shell: pods.PodShell) -> None:
    shell.write(
        "saves.py",
        """
        import torch
        from oarlock import train
        train.init()
        with train.Session(model=torch.nn.Linear(1, 1), total_steps=60, every_steps=10) as session:
            for step in session.steps():
                pass
        """,
    )
    shell.do("run", "--name", "saves", "--keep", "2", "--", "python", "saves.py")
    folder = shell.cluster.folder / "claims" / "checkpoints" / shell.job("saves")["id"]
    with shell.client() as client:
        listed = [one.path for one in client.checkpoints("saves")]
    assert listed
    assert listed[0].endswith("-step-60")
    there = {str(path.parent) for path in folder.glob("*/manifest.json")}
    assert set(listed) <= there, "one that a newer one has overtaken is not listed"
    assert len(there) <= 2


def test_data_comes_from_an_object_store_and_results_go_there(
    shell: pods.PodShell, bucket: objectstores.Bucket
) -> None:
    bucket.put("digits/rows.txt", b"1 2 3")
    shell.write(
        "copies.py",
        """
        import os
        open(os.environ["OARLOCK_RESULTS"] + "/rows.txt", "w").write(open("data/rows.txt").read() * 2)
        """,
    )
    env = ", ".join(f'{name}: "{value}"' for name, value in bucket.env.items())
    shell.write(
        "job.yaml",
        f"""
        name: far
        command: python copies.py
        data: [{{source: "{bucket.url}/digits", mount: data}}]
        results: {bucket.url}/out
        env: {{{env}}}
        """,
    )
    shell.do("submit", "job.yaml", "--follow")
    assert bucket.keys("out/") == ["out/rows.txt"]


def test_data_that_cannot_be_had_fails_the_job_with_the_reason(
    shell: pods.PodShell, bucket: objectstores.Bucket
) -> None:
    env = [word for name, value in bucket.env.items() for word in ("--env", f"{name}={value}")]
    done = shell.do(
        "run",
        "--data",
        f"{bucket.url}/absent:data",
        *env,
        "--max-restarts",
        "0",
        "--name",
        "lacks",
        "--",
        "true",
        code=1,
    )
    assert "there is nothing at" in done.stderr


def test_dependencies_are_installed_once_for_the_jobs_of_a_user(shell: pods.PodShell) -> None:
    """The task's own container installs them, on the claim of the installation."""
    installs_once(shell, "checkpoints")


def installs_once(shell: pods.PodShell, claim: str) -> None:
    wheels = shell.home.parent / "wheels"
    wheels.mkdir()
    test_surroundings.wheel(wheels, "oarlock_test_greeting", "greeting = 'hello from a package'")
    shell.write("requirements.txt", f"--no-index\n--find-links {wheels}\noarlock-test-greeting\n")
    say = ["python", "-c", "import oarlock_test_greeting as g; print(g.greeting)"]
    first = shell.do("run", "--workers", "2", "--dependencies", "requirements.txt", "--", *say)
    assert first.stdout.count("hello from a package") == 2
    for wheel in wheels.iterdir():
        wheel.unlink()  # a second installation would fail
    again = shell.do("run", "--dependencies", "requirements.txt", "--", *say)
    assert "hello from a package" in again.stdout
    owners = shell.cluster.folder / "claims" / claim / "environments"
    (made,) = [path for path in owners.glob("*/*") if path.is_dir()]
    assert (made / "bin" / "python").exists()


def test_dependencies_that_cannot_be_had_are_named(shell: pods.PodShell) -> None:
    test_surroundings.test_dependencies_that_cannot_be_had_are_named(shell)


def test_a_command_runs_inside_a_running_task(shell: pods.PodShell) -> None:
    shell.write("waits.py", "import time\ntime.sleep(600)\n")
    shell.do("run", "--detach", "--grace", "1s", "--name", "looked-into", "--", "python", "waits.py")
    shell.wait_phase("looked-into", "PROCESSING")
    done = shell.do("exec", "looked-into", "--", "sh", "-c", "echo $OARLOCK_JOB; ls waits.py; exit 7", code=7)
    assert done.stdout.split() == [shell.job("looked-into")["id"], "waits.py"]
    shell.do("cancel", "looked-into")
    shell.wait_phase("looked-into", "CANCELED")


@needs.mark("mpirun", there=shutil.which("mpirun") is not None)
def test_mpirun_starts_ranks_in_the_pods_of_the_workers(shell: pods.PodShell) -> None:
    """There is no sshd: the agents start its daemons."""
    done = shell.do(
        "run", "--framework", "mpi", "--image", "registry.example/mpi:1", "--workers", "2", "--name", "ranks",
        "--env", "OMPI_ALLOW_RUN_AS_ROOT=1", "--env", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "--",
        "mpirun", "sh", "-c",
        "echo rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE in $OARLOCK_ROLE $OARLOCK_INDEX",
    )  # fmt: skip
    shell.write(
        "ranks.yaml",
        """
        framework: mpi
        image: registry.example/mpi:1
        command: mpirun hostname
        roles: {worker: {count: 2, cpus: 4, memory: 1Gi}}
        """,
    )
    planned = yaml.safe_load_all(shell.do("plan", "ranks.yaml", "--backend", "kubernetes", "-o", "yaml").stdout)
    (launcher,) = (one for one in planned if one["kind"] == "Pod" and "launcher" in one["metadata"]["name"])
    (task,) = (one for one in launcher["spec"]["containers"] if one["name"] == "task")
    assert "cpu" not in task["resources"]["limits"], "Kubernetes would make it the request, too"
    said = sorted(line for line in done.stdout.splitlines() if "rank" in line)
    assert [line[line.index("rank") :] for line in said] == ["rank 0 of 2 in worker 0", "rank 1 of 2 in worker 1"]
    shell.do(
        "run", "--framework", "mpi", "--image", "registry.example/mpi:1", "--workers", "2", "--name", "fails",
        "--env", "OMPI_ALLOW_RUN_AS_ROOT=1", "--env", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "--max-restarts", "0", "--",
        "mpirun", "sh", "-c", "exit $((OMPI_COMM_WORLD_RANK * 7))", code=7,
    )  # fmt: skip


@needs.mark("mpiexec.hydra", there=shutil.which("mpiexec.hydra") is not None)
def test_hydra_starts_ranks_in_the_pods_of_the_workers(shell: pods.PodShell) -> None:
    """The launcher of MPICH, beside Open MPI's: it has another hostfile, and other variables for the shell."""
    run = ("run", "--framework", "mpi", "--image", "registry.example/mpi:1", "--workers", "2")
    ranks = "echo rank $PMI_RANK of $PMI_SIZE at $MPI_LOCALRANKID in $(basename $PWD)"
    done = shell.do(*run, "--nproc", "2", "--name", "hydra", "--", "mpiexec.hydra", "sh", "-c", ranks)
    said = sorted(line[line.index("rank") :].split(" in ")[0] for line in done.stdout.splitlines() if "rank" in line)
    assert said == ["rank 0 of 4 at 0", "rank 1 of 4 at 1", "rank 2 of 4 at 0", "rank 3 of 4 at 1"]
    fails = ("--name", "hydra-fails", "--max-restarts", "0")
    shell.do(*run, *fails, "--", "mpiexec.hydra", "sh", "-c", "exit $((PMI_RANK * 7))", code=7)


def test_pods_share_neither_ports_nor_temporary_files_with_others(shell: pods.PodShell) -> None:
    """The pods of this test, and those of another test process, which would wait for each other."""
    with socket.create_server(("", rendering.PORTS[0])):
        say = ["sh", "-c", "echo at $MASTER_PORT in $TMPDIR"]
        done = shell.do("run", "--workers", "2", "--", *say)
    said = [line.partition(" at ")[2].split(" in ") for line in done.stdout.splitlines() if " at " in line]
    (first, one), (second, two) = said
    assert first == second != str(rendering.PORTS[0])
    assert one != two


def test_a_field_that_pods_do_not_have_is_refused(shell: pods.PodShell) -> None:
    done = shell.do("run", "--framework", "jax", "--", "true", code=1)
    assert "no image for the framework jax" in done.stderr
    assert "[kubernetes.images]" in done.stderr


def test_a_node_with_a_taint_is_for_the_pool_whose_profile_tolerates_it(shell: pods.PodShell) -> None:
    """Only that node is large enough. A job of another pool is refused, and told the reason."""
    taint = {"key": "team", "value": "ours", "effect": "NoSchedule"}
    disk = {"example.com/disk": "ssd"}
    there = shell.on_cluster(shell.cluster.add("tainted", cpu="100", memory="512Gi", labels=disk, taints=[taint]))

    def known() -> bool:
        known = (one["node"] for one in shell.json("nodes")["items"])
        return any(one["name"] == there and one["ready"] and one["capacity"]["cpus_milli"] for one in known)

    shell.until(known, "the server knows the node")
    refused = shell.do("run", "--cpus", "80", "--name", "outside", "--", "true", code=1)
    assert f"Closed to it: {there} (taint team=ours:NoSchedule)" in refused.stderr
    shell.do("pool", "set", "dedicated")
    shell.do("run", "--detach", "--pool", "dedicated", "--name", "inside", "--", "sleep", "60")
    shell.wait_phase("inside", "PROCESSING")
    (pod,) = [one for one in shell.raw("pods") if one["metadata"]["name"].startswith(shell.job("inside")["id"])]
    assert pod["spec"]["nodeName"] == there
    assert pod["spec"]["nodeSelector"] == disk
    mine = {"key": "team", "operator": "Equal", "value": "ours"}
    assert mine in pod["spec"]["tolerations"]
    shell.do("cancel", "inside")
    shell.wait_phase("inside", "CANCELED")
    shell.do("pool", "rm", "dedicated")


def test_the_sidecar_of_a_profile_ends_with_the_task(shell: pods.PodShell) -> None:
    """It would run for ever. The job's own end counts, with its exit code and its output."""
    shell.do("pool", "set", "meshed")
    asked = ("--pool", "meshed", "--framework", "plain", "--image", "registry.example/any:1")
    for name, command, code in (("ends", "echo all is done", 0), ("fails", "exit 7", 7)):
        done = shell.do("run", *asked, "--max-restarts", "0", "--name", name, "--", "sh", "-c", command, code=code)
        job = shell.job(name)
        assert (job["phase"], job["exit_code"]) == ("FAILED" if code else "COMPLETED", code)
        assert code or "all is done" in done.stdout
        shell.until(lambda: not shell.pods(), "the sidecar is gone")


def test_a_plan_knows_of_a_volume_that_no_new_node_can_mount(shell: pods.PodShell) -> None:
    """The leader knew it, and requested no node; the API's plan promised the node, and the job was accepted."""
    shell.write(
        "far.yaml",
        """
        name: far
        command: "true"
        framework: plain
        image: registry.example/plain:1
        volumes: [{claim: far, mount: /far}]
        roles: {worker: {cpus: 40}}
        """,
    )
    assert "Never" not in shell.do("plan", "far.yaml").stdout
    there = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["elsewhere"]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/nothing"},
        "claimRef": {"namespace": shell.namespace, "name": "far"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
    }
    shell.on_cluster(shell.make_volume("far", spec))
    shell.until(lambda: "Never" in shell.do("plan", "far.yaml", code=None).stdout, "the plan")
    refused = shell.do("submit", "far.yaml", "--no-snapshot", code=1)
    assert "huge" in refused.stderr
    assert "the volume of claim far cannot be mounted there" in refused.stderr


def test_a_job_for_which_a_node_is_added_runs_there(shell: pods.PodShell) -> None:
    """No node is large enough; a declared class is. `why`, the measurement and the Event tell the missing node."""
    shell.do("run", "--detach", "--cpus", "40", "--name", "large", "--", "true")
    shell.wait_for("large", lambda job: job["node_request"] is not None)
    assert "1 node of huge was requested" in shell.do("why", "large").stdout
    measured = httpx.get(f"http://127.0.0.1:{shell.port}/metrics", trust_env=False).text
    assert 'oarlock_nodes_missing{node_class="huge"} 1.0' in measured
    shell.until(lambda: shell.missing("large") == ["huge=1"], "the Event")
    label = {"node.kubernetes.io/instance-type": "huge"}
    shell.on_cluster(shell.cluster.add("added", cpu="64", memory="256Gi", labels=label))
    done = shell.wait_phase("large", "COMPLETED", "FAILED")
    assert done["phase"] == "COMPLETED"
    assert done["node_request"] is None
    refused = shell.do("run", "--cpus", "400", "--name", "larger", "--", "true", code=1)
    assert "at most 2 of huge" in refused.stderr


def test_nothing_of_any_job_stays_in_the_cluster(shell: pods.PodShell) -> None:
    """Neither pods nor the Secrets with the tokens of their tasks. The last test: all jobs have ended.

    The cluster's garbage collector removes the Secrets that a removed pod owned. None runs here.
    """

    def left() -> list[str]:
        there = shell.pods()
        alive = {pod.metadata.uid for pod in there}
        secrets = [
            one
            for one in shell.secrets()
            if all(owner.kind != "Pod" or owner.uid in alive for owner in one.metadata.owner_references)
        ]
        return [one.metadata.name for one in (*there, *secrets)]

    shell.until(lambda: not left(), "pods and Secrets are gone")
