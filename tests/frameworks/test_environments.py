"""The variables of each framework's processes, against those of its own launcher where that can be run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from oarlock.frameworks import clusters, environments, mpi
from oarlock.spec import attempts, errors, jobfile, jobs, roles


def job(
    framework: str, shape: dict[str, jobfile.Role], incarnation: int = 1, strategy: jobfile.Strategy | None = None
) -> jobs.Job:
    spec = jobfile.JobSpec(
        strategy=strategy or jobfile.Strategy(),
        command="true",
        framework=roles.Framework(framework),
        roles={roles.RoleName(name): role for name, role in shape.items()},
    )
    tasks = []
    for number, (name, role) in enumerate(shape.items()):
        for index in range(role.count):
            first = 20000 + 100 * number + 10 * index
            tasks.append(
                attempts.Task(
                    role=roles.RoleName(name),
                    index=index,
                    incarnation=incarnation,
                    address=f"10.0.{number}.{index}",
                    ports=tuple(range(first, first + 4)),
                )
            )
    attempt = attempts.Attempt(number=2, started_at=0.0, round=1, tasks=tuple(tasks))
    return jobs.Job(id="j-1", name="digits", owner="ann", spec=spec, created_at=0.0, attempts=(attempt,))


def told(one: jobs.Job, role: str, index: int, incarnation: int = 1) -> list[dict[str, str]]:
    key = attempts.TaskKey(one.id, 2, role, index, incarnation)
    return [dict(process.env) for process in environments.rendezvous(one, key).processes]


@pytest.mark.long
def test_torch_ranks_run_over_chief_and_workers() -> None:
    one = job("torch", {"worker": jobfile.Role(count=2, nproc=2), "chief": jobfile.Role(), "evaluator": jobfile.Role()})
    ranks = {
        (role, index, process): env["RANK"]
        for role, index in [("chief", 0), ("worker", 0), ("worker", 1)]
        for process, env in enumerate(told(one, role, index))
    }
    assert ranks == {
        ("chief", 0, 0): "0",
        ("worker", 0, 0): "1",
        ("worker", 0, 1): "2",
        ("worker", 1, 0): "3",
        ("worker", 1, 1): "4",
    }
    last = told(one, "worker", 1)[1]
    assert (last["WORLD_SIZE"], last["LOCAL_RANK"], last["LOCAL_WORLD_SIZE"]) == ("5", "1", "2")
    assert (last["MASTER_ADDR"], last["MASTER_PORT"]) == ("10.0.1.0", "20100"), "the chief is rank 0"
    assert "RANK" not in told(one, "evaluator", 0)[0]


@pytest.mark.long
def test_torch_gives_the_variables_of_torchrun(tmp_path: Path) -> None:
    """Every variable that torchrun sets for a worker is set by us too, with the same value where it names ranks."""
    script = tmp_path / "env.py"
    script.write_text("import json, os; print(json.dumps(dict(os.environ)))")
    before = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "PET_", "OMP"))}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--master-port=29531", str(script)]
    done = subprocess.run(command, env=before, capture_output=True, text=True, timeout=280, check=True)
    theirs = json.loads(done.stdout)
    added = {
        name for name in theirs if name not in before and name.startswith(("TORCHELASTIC", "R", "W", "L", "G", "M"))
    }
    ours = told(job("torch", {"worker": jobfile.Role()}), "worker", 0)[0]
    assert len(added) > 10
    assert added - set(ours) == set()
    who = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE"]
    assert {name: theirs[name] for name in who} == {name: ours[name] for name in who}


@pytest.mark.long
def test_pet_variables_alone_drive_torchrun(tmp_path: Path) -> None:
    """A command that is torchrun itself takes its shape from what the task was told."""
    one = job("torch", {"worker": jobfile.Role(nproc=1)})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = str(listener.getsockname()[1])
    here = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": free, "PET_NPROC_PER_NODE": "2"}
    env = told(one, "worker", 0)[0] | here
    env["TORCHELASTIC_ERROR_FILE"] = str(tmp_path / "error.json")
    script = tmp_path / "rank.py"
    script.write_text("import os, sys; sys.stdout.write(os.environ['RANK'] + '/' + os.environ['WORLD_SIZE'] + '\\n')")
    command = [sys.executable, "-m", "torch.distributed.run", str(script)]
    done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=280, check=True)
    assert sorted(done.stdout.split()) == ["0/2", "1/2"]


def test_tensorflow_cluster_leaves_the_evaluator_outside() -> None:
    shape = {
        "chief": jobfile.Role(),
        "worker": jobfile.Role(count=2),
        "ps": jobfile.Role(),
        "evaluator": jobfile.Role(),
    }
    config = json.loads(told(job("tensorflow", shape), "worker", 1)[0]["TF_CONFIG"])
    assert config == {
        "cluster": {
            "chief": ["10.0.0.0:20000"],
            "worker": ["10.0.1.0:20100", "10.0.1.1:20110"],
            "ps": ["10.0.2.0:20200"],
        },
        "task": {"type": "worker", "index": 1},
        "environment": "cloud",
    }
    evaluator = json.loads(told(job("tensorflow", shape), "evaluator", 0)[0]["TF_CONFIG"])
    assert evaluator["task"] == {"type": "evaluator", "index": 0}


def test_jax_counts_processes() -> None:
    env = told(job("jax", {"worker": jobfile.Role(count=2, nproc=2)}), "worker", 1)[1]
    assert (env["JAX_COORDINATOR_ADDRESS"], env["JAX_NUM_PROCESSES"], env["JAX_PROCESS_ID"]) == (
        "10.0.0.0:20000",
        "4",
        "3",
    )


@pytest.mark.parametrize(
    ("file", "content", "variables"),
    [
        (
            "hostfile",
            "10.0.1.0 slots=4\n10.0.1.1 slots=4\n",
            ("OARLOCK_HOSTFILE", "OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"),
        ),
        ("hostfile.hydra", "10.0.1.0:4\n10.0.1.1:4\n", ("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE")),
    ],
)
def test_each_mpirun_finds_a_hostfile_of_its_own_form(file: str, content: str, variables: tuple[str, ...]) -> None:
    """With a line for each host. Hydra ends with an error at the words of Open MPI."""
    one = job("mpi", {"launcher": jobfile.Role(), "worker": jobfile.Role(count=2, nproc=4)})
    key = attempts.TaskKey(one.id, 2, "launcher", 0, 1)
    assert environments.rendezvous(one, key).files[file] == content
    env = told(one, "launcher", 0)[0]
    assert {env[name] for name in variables} == {f"{{task_dir}}/{file}"}


def test_each_mpirun_gets_the_remote_shell_in_its_own_words() -> None:
    """Open MPI splits a line of words; Hydra takes a program, and its arguments apart."""
    env = mpi.remote(("/runtime/python3", "-I", "agent.pyz", "--shell"))
    assert {env[name] for name in ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")} == {
        "/runtime/python3 -I agent.pyz --shell"
    }
    for prefix in ("HYDRA_LAUNCHER", "I_MPI_HYDRA_BOOTSTRAP"):
        extra = "EXTRA_ARGS" if prefix == "HYDRA_LAUNCHER" else "EXEC_EXTRA_ARGS"
        found = (env[prefix], env[f"{prefix}_EXEC"], env[f"{prefix}_{extra}"])
        assert found == ("rsh", "/runtime/python3", "-I agent.pyz --shell")


def test_an_mpi_job_gets_the_launcher_that_runs_its_command_once() -> None:
    worker = jobfile.Role(count=2, nproc=4, memory="1Gi")
    asked = jobfile.JobSpec(command="mpirun x", framework=roles.Framework.MPI, roles={roles.RoleName.WORKER: worker})
    told = mpi.with_launcher(asked)
    assert told.roles[roles.RoleName.WORKER] is worker
    assert told.roles[roles.RoleName.LAUNCHER] == jobfile.Role(cpus=0, memory=mpi.LAUNCHER_MEMORY)
    assert mpi.with_launcher(told) is told, "it has one"
    torch = msgspec.structs.replace(asked, framework=roles.Framework.TORCH)
    assert mpi.with_launcher(torch) is torch
    unlimited = mpi.with_launcher(msgspec.structs.replace(asked, roles={roles.RoleName.WORKER: jobfile.Role()}))
    assert unlimited.roles[roles.RoleName.LAUNCHER].memory is None


def test_plain_describes_the_cluster() -> None:
    one = job("plain", {"worker": jobfile.Role(count=2)})
    described = json.loads(
        environments.rendezvous(one, attempts.TaskKey("j-1", 2, "worker", 1, 1)).files["cluster.json"]
    )
    assert described["self"] == {"role": "worker", "index": 1}
    assert [task["address"] for task in described["tasks"]] == ["10.0.0.0", "10.0.0.1"]


def test_the_job_files_own_variables_win() -> None:
    one = job("torch", {"worker": jobfile.Role(cpus=4)})
    assert told(one, "worker", 0)[0]["OMP_NUM_THREADS"] == "4"
    spec = jobfile.JobSpec(command="true", roles=one.spec.roles, env={"OMP_NUM_THREADS": "1"})
    mine = jobs.Job(id="j-1", name="digits", owner="ann", spec=spec, created_at=0.0, attempts=one.attempts)
    assert "OMP_NUM_THREADS" not in told(mine, "worker", 0)[0], "the agent puts the job file's own there"


@pytest.mark.parametrize(("attempt", "incarnation"), [(1, 1), (2, 2), (3, 1)])
def test_another_life_is_told_nothing(attempt: int, incarnation: int) -> None:
    one = job("torch", {"worker": jobfile.Role()})
    with pytest.raises(errors.StaleTask):
        environments.rendezvous(one, attempts.TaskKey("j-1", attempt, "worker", 0, incarnation))


def test_on_a_shared_device_no_job_takes_all_of_its_memory() -> None:
    """Both take it at their start, unless they are told otherwise."""
    half = {"worker": jobfile.Role(gpus=0.5, nproc=2)}
    assert told(job("jax", half), "worker", 0)[1]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.225"
    assert told(job("tensorflow", half), "worker", 0)[0]["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    whole = {"worker": jobfile.Role(gpus=1)}
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in told(job("jax", whole), "worker", 0)[0]
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in told(job("tensorflow", whole), "worker", 0)[0]


@pytest.mark.parametrize("framework", [str(one) for one in roles.Framework])
@pytest.mark.parametrize("present", [1, 2, 3])
def test_an_elastic_gang_is_told_how_large_it_is_and_not_how_large_it_was_asked_to_be(
    framework: str, present: int
) -> None:
    """An elastic role says `count: 2, min: 1, max: 3`; the attempt has as many tasks as there was room for."""
    one = job(framework, {"worker": jobfile.Role(count=present)})
    asked = jobfile.Role(count=2, min=1, max=3)
    spec = jobfile.JobSpec(command="true", framework=roles.Framework(framework), roles={roles.RoleName.WORKER: asked})
    one = jobs.Job(id="j-1", name="digits", owner="ann", spec=spec, created_at=0.0, attempts=one.attempts)
    rendezvous = environments.rendezvous(one, attempts.TaskKey("j-1", 2, "worker", present - 1, 1))
    env = rendezvous.processes[0].env
    sizes = {
        "torch": lambda: [int(env[name]) for name in ("WORLD_SIZE", "GROUP_WORLD_SIZE", "PET_NNODES")],
        "jax": lambda: [int(env["JAX_NUM_PROCESSES"])],
        "tensorflow": lambda: [len(json.loads(env["TF_CONFIG"])["cluster"]["worker"])],
        "mpi": lambda: [int(env["OARLOCK_SLOTS"]), rendezvous.files["hostfile"].count("slots=")],
        "plain": lambda: [len(json.loads(rendezvous.files["cluster.json"])["tasks"])],
    }[framework]()
    assert set(sizes) == {present}


def test_a_worker_that_is_to_leave_is_told_of_a_round_without_its_rank() -> None:
    one = job("torch", {"worker": jobfile.Role(count=3, min=1, on_failure=roles.OnFailure.RESTART)})
    (attempt,) = one.attempts
    leaves = msgspec.structs.replace(attempt.tasks[2], part=attempts.Part.LEFT, leave_by=9.0)
    after = msgspec.structs.replace(attempt, round=2, tasks=(*attempt.tasks[:2], leaves))
    one = msgspec.structs.replace(one, attempts=(after,))
    envs = {index: told(one, "worker", index)[0] for index in range(3)}
    assert [envs[index].get("RANK") for index in range(3)] == ["0", "1", None]
    assert [envs[index]["WORLD_SIZE"] for index in (0, 1)] == ["2", "2"]


@pytest.mark.parametrize(
    ("roles_of", "least"),
    [
        ({"worker": jobfile.Role(count=3, nproc=2, on_failure=roles.OnFailure.RESTART)}, "6"),
        ({"chief": jobfile.Role(), "worker": jobfile.Role(on_failure=roles.OnFailure.RESTART)}, "2"),
        ({"worker": jobfile.Role(count=3, min=2, on_failure=roles.OnFailure.RESTART)}, None),
        ({"worker": jobfile.Role(count=3)}, None),
        ({"worker": jobfile.Role(on_failure=roles.OnFailure.RESTART)}, None),
    ],
    ids=["fixed", "with a chief", "elastic", "not asked for", "alone"],
)
def test_a_gang_of_a_fixed_size_is_told_without_how_many_it_makes_no_step(
    roles_of: dict[str, jobfile.Role], least: str | None
) -> None:
    env = told(job("torch", roles_of), "worker", 0)[0]
    assert env.get("OARLOCK_LEAST_RANKS") == least
    elastic = roles_of["worker"].count > 1 or "chief" in roles_of
    assert ("OARLOCK_ELASTIC" in env) == (elastic and roles_of["worker"].on_failure is roles.OnFailure.RESTART)


@pytest.mark.parametrize("kind", [None, *jobfile.StrategyKind])
def test_workers_and_servers_are_told_where_the_parameter_servers_are(kind: jobfile.StrategyKind | None) -> None:
    shape = {"worker": jobfile.Role(count=2), "ps": jobfile.Role(count=2, nproc=2)}
    one = job("torch", shape, strategy=jobfile.Strategy(kind=kind))
    servers = "10.0.1.0:20100,10.0.1.0:20101,10.0.1.1:20110,10.0.1.1:20111"
    for role, index, process, own in (
        ("worker", 1, 0, None),
        ("ps", 0, 1, "10.0.1.0:20101"),
        ("ps", 1, 0, "10.0.1.1:20110"),
    ):
        env = told(one, role, index)[process]
        assert env["OARLOCK_SERVERS"] == servers
        assert env.get("OARLOCK_SERVER") == own
    assert "OARLOCK_SERVERS" not in told(job("tensorflow", shape), "worker", 0)[0]


def test_a_worker_of_servers_keeps_its_number_while_others_come_and_go() -> None:
    shape = {"chief": jobfile.Role(), "worker": jobfile.Role(count=3, min=1, nproc=2), "ps": jobfile.Role()}
    apart = jobfile.Strategy(kind=jobfile.StrategyKind.PS, sync=False)
    one = job("torch", shape, strategy=apart)
    (attempt,) = one.attempts
    left = msgspec.structs.replace(attempt.tasks[2], part=attempts.Part.LEFT, leave_by=9.0)
    tasks = (*attempt.tasks[:2], left, *attempt.tasks[3:])
    one = msgspec.structs.replace(one, attempts=(msgspec.structs.replace(attempt, tasks=tasks),))
    found = [
        (env["OARLOCK_WORKER"], env.get("RANK"))
        for role, index in (("chief", 0), ("worker", 0), ("worker", 1), ("worker", 2))
        for env in told(one, role, index)
    ]
    assert found == [("0", "0"), ("1", "1"), ("2", "2"), ("3", None), ("4", None), ("5", "3"), ("6", "4")]
    assert "OARLOCK_WORKER" not in told(one, "ps", 0)[0]
    for fixed in (jobfile.Strategy(kind=jobfile.StrategyKind.PS), jobfile.Strategy()):
        assert "OARLOCK_WORKER" not in told(job("torch", shape, strategy=fixed), "worker", 0)[0]


def test_an_ipv6_address_stands_in_brackets_beside_a_port() -> None:
    """gRPC and our own programs read such addresses so; without brackets the port is part of the address."""
    found = clusters.Member(
        role=roles.RoleName.WORKER, index=0, address="fd00::7", ports=(29400,), nproc=1, cpus_milli=1000, gpus=0
    )
    assert found.endpoint() == "[fd00::7]:29400"
    assert msgspec.structs.replace(found, address="10.0.0.7").endpoint() == "10.0.0.7:29400"
