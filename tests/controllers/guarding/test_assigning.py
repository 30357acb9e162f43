"""The assignment of a task, field by field."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.controllers.plant import machine
from tests.lifecycle import script

from oarlock.controllers.guarding import assigning
from oarlock.spec import attempts, curves, holdings, jobfile, jobs, roles
from oarlock.spec.cluster import nodes
from oarlock.spec.protocol import assignments, tasktokens

SETTINGS = assigning.Settings(
    server="http://127.0.0.1:7317",
    server_file="/home/a/.oarlock/server.json",
    task_secret=b"s" * 32,
    checkpoints="/home/a/.oarlock/checkpoints/",
    results="file:///home/a/.oarlock/results",
    files="file:///home/a/.oarlock/files",
    environments="/home/a/.oarlock/environments",
    helper=("python", "-m", "oarlock.data"),
    orphan_timeout_s=600.0,
)


def job(text: str, **fields: object) -> jobs.Job:
    return msgspec.structs.replace(script.new_job(text), **fields)


def told(
    job: jobs.Job,
    role: str = "worker",
    index: int = 0,
    devices: tuple[int, ...] = (),
    node=None,
    settings: assigning.Settings | None = None,
    **more: int,
) -> assignments.Assignment:
    task = attempts.Task(role=roles.RoleName(role), index=index, incarnation=2, ports=(20000, 20001), devices=devices)
    return assigning.assignment(job, 3, task, node or machine("n0"), settings or SETTINGS, **more)


def test_the_key_and_a_token_that_is_its_own() -> None:
    found = told(job("{}"))
    assert found.key == "j/3/worker/0/2"
    assert tasktokens.holds(SETTINGS.task_secret, attempts.TaskKey.parse(found.key), found.token)
    assert found.token != told(job("{}"), index=1).token
    assert found.ports == (20000, 20001)
    assert (found.server, found.server_file) == (SETTINGS.server, SETTINGS.server_file)


def test_the_job_file_in_the_agents_words() -> None:
    text = "{command: [python, t.py], grace: 2m, freeze: 10m, dependencies: r.txt, roles: {worker: {nproc: 4}}}"
    found = told(job(text, snapshot="sha256:00", shell={"PATH": "/venv/bin"}))
    assert (found.command, found.grace_s, found.freeze_s, found.nproc) == (("python", "t.py"), 120.0, 600.0, 4)
    assert (found.requirements, found.snapshot, found.path_env) == ("r.txt", "sha256:00", {"PATH": "/venv/bin"})
    assert told(job("{}")).freeze_s is None


def test_checkpoints_lie_where_the_job_says_else_in_the_servers_place() -> None:
    assert told(job("{}")).env["OARLOCK_CHECKPOINTS"] == "/home/a/.oarlock/checkpoints/j"
    env = told(job("{env: {A: '1'}, checkpoint: {to: /mnt/c, every: 10m, keep: 5}}")).env
    assert env == {
        "A": "1",
        "OARLOCK_JOB_NAME": "train",
        "OARLOCK_CHECKPOINTS": "/mnt/c/j",
        "OARLOCK_CHECKPOINT_EVERY_S": "600",
        "OARLOCK_CHECKPOINT_KEEP": "5",
    }
    assert "OARLOCK_CHECKPOINT_KEEP" not in told(job("{}")).env, "the script may say it where the job does not"


@pytest.mark.parametrize(
    ("to", "directory", "copies"),
    [
        ("/mnt/a b/", "/mnt/a b/j", None),
        ("file:///mnt/a%20b", "/mnt/a b/j", None),
        ("s3://b/ckpt/", "/home/a/.oarlock/checkpoints/j", assignments.Copies("s3://b/ckpt/j", 2)),
    ],
)
def test_processes_write_to_a_directory_wherever_checkpoints_go(
    to: str, directory: str, copies: assignments.Copies | None
) -> None:
    found = told(job(f"{{checkpoint: {{to: '{to}', keep: 2}}}}"))
    assert (found.env["OARLOCK_CHECKPOINTS"], found.checkpoint_copies) == (directory, copies)


def test_tasks_without_a_common_directory_store_their_own_shards() -> None:
    apart = msgspec.structs.replace(SETTINGS, checkpoints=None, checkpoints_visible=False)
    found = told(job("{checkpoint: {to: 's3://b/ckpt', keep: 2}}"), settings=apart)
    assert found.checkpoint_copies == assignments.Copies("s3://b/ckpt/j", 2, separate=True)
    assert found.env["OARLOCK_CHECKPOINTS_SEPARATE"] == "1"
    on_a_volume = told(job("{checkpoint: {to: /mnt/a}}"), settings=apart)
    assert "OARLOCK_CHECKPOINTS_SEPARATE" not in on_a_volume.env, "all tasks mount the volume"
    assert "OARLOCK_CHECKPOINTS_SEPARATE" not in told(job("{checkpoint: {to: 's3://b'}}")).env


def test_the_launcher_of_mpi_reaches_workers_elsewhere_by_our_shell() -> None:
    pods = msgspec.structs.replace(SETTINGS, shell=("agent", "--shell"), shell_server=("agent", "--serve-shell"))
    gang = job("{framework: mpi, roles: {launcher: {cpus: 0}, worker: {count: 2}}}")
    launcher, worker = (told(gang, role, settings=pods) for role in ("launcher", "worker"))
    assert launcher.env["OMPI_MCA_plm_rsh_agent"] == "agent --shell"
    assert (worker.command, launcher.command) == (("agent", "--serve-shell"), gang.spec.command)
    assert worker.env["OARLOCK_SHELL_TOKEN"] == launcher.env["OARLOCK_SHELL_TOKEN"]
    here = told(gang, "worker")
    assert "OARLOCK_SHELL_TOKEN" not in here.env
    assert here.command != worker.command


def test_results_of_several_tasks_do_not_meet() -> None:
    spec = "{results: s3://b/out/, roles: {chief: {}, worker: {count: 2}}}"
    places = {told(job(spec), role, index).uploads.to for role, index in (("chief", 0), ("worker", 0), ("worker", 1))}
    assert places == {"s3://b/out/", "s3://b/out/worker-0", "s3://b/out/worker-1"}


def test_results_lie_in_the_servers_place_where_the_job_says_nothing() -> None:
    spec = "{roles: {worker: {count: 2}}}"
    places = [told(job(spec), index=index).uploads.to for index in (0, 1)]
    assert places == ["file:///home/a/.oarlock/results/j", "file:///home/a/.oarlock/results/j/worker-1"]
    without = msgspec.structs.replace(SETTINGS, results=None)
    task = attempts.Task(role=roles.RoleName.WORKER, index=0)
    assert assigning.assignment(job("{}"), 1, task, None, without).uploads is None


def test_the_processes_are_told_the_strategy_that_the_job_file_sets() -> None:
    assert "OARLOCK_STRATEGY" not in told(job("{}")).env, "the script decides"
    env = told(job("{strategy: {kind: allreduce, compression: bf16, bucket_bytes: tuned}}")).env
    asked = {"kind": "allreduce", "compression": "bf16", "bucket_bytes": "tuned"}
    assert json.loads(env["OARLOCK_STRATEGY"]) == asked
    env = told(job("{strategy: {kind: ps, sync: false}, roles: {worker: {}, ps: {}}}")).env
    assert json.loads(env["OARLOCK_STRATEGY"])["sync"] is False


@pytest.mark.parametrize("strategy", ["{}", *(f"{{kind: {kind}}}" for kind in jobfile.StrategyKind)])
def test_parameter_servers_run_our_program_and_only_tasks_of_their_attempt_know_the_token(strategy: str) -> None:
    """The script would train a second model there, alone, whatever the strategy of the workers."""
    asked = job(f"{{strategy: {strategy}, roles: {{worker: {{}}, ps: {{}}}}}}")
    server, worker = told(asked, roles.RoleName.PS), told(asked)
    assert server.command[-1].endswith("-m oarlock.train.servers")
    assert "oarlock.train.servers" not in str(worker.command)
    token = server.env["OARLOCK_SERVERS_TOKEN"]
    assert worker.env["OARLOCK_SERVERS_TOKEN"] == token
    assert token not in {server.token, worker.token}
    task = attempts.Task(role=roles.RoleName.WORKER, index=0)
    later = assigning.assignment(asked, 2, task, None, SETTINGS)
    assert later.env["OARLOCK_SERVERS_TOKEN"] != told(asked).env["OARLOCK_SERVERS_TOKEN"]


@pytest.mark.parametrize("framework", [each for each in roles.Framework if each is not roles.Framework.TORCH])
def test_servers_of_other_frameworks_run_the_command(framework: str) -> None:
    asked = job(f"{{framework: {framework}, roles: {{worker: {{}}, ps: {{}}}}}}")
    own = told(asked, roles.RoleName.PS)
    assert own.command == told(asked).command
    assert "OARLOCK_SERVERS_TOKEN" not in own.env


def test_a_server_without_torch_says_how_to_go_on(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without the packages of the environment
    python.chmod(0o755)
    command = told(job("{roles: {worker: {}, ps: {}}}"), roles.RoleName.PS).command
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{python} has no torch" in done.stderr
    assert "--framework" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_the_batch_size_is_told_where_it_is_ours_to_decide() -> None:
    asked = job("{batch: {size: 64, max: 256}, roles: {worker: {}}}")
    assert told(asked).env["OARLOCK_BATCH_SIZE"] == "64"
    assert "OARLOCK_LOCAL_BATCH" not in told(asked).env
    live = attempts.Attempt(number=3, started_at=0.0, batch=curves.Batch(32, 2))
    env = told(job("{batch: {size: 64}}", attempts=(live,))).env
    assert (env["OARLOCK_LOCAL_BATCH"], env["OARLOCK_ACCUMULATE"]) == ("32", "2")
    earlier = msgspec.structs.replace(live, number=2)
    assert "OARLOCK_LOCAL_BATCH" not in told(job("{batch: {size: 64}}", attempts=(earlier,))).env
    assert not any("BATCH" in name for name in told(job("{}")).env)


def test_a_task_that_shares_a_device_is_told_its_part_of_the_memory() -> None:
    """By what it holds: a job that asked for a whole device may have been packed onto one with another."""
    assert told(job("{}"), share_milli=500).env["OARLOCK_GPU_FRACTION"] == "0.5"
    assert told(job("{roles: {worker: {nproc: 2}}}"), share_milli=300).env["OARLOCK_GPU_FRACTION"] == "0.15"
    assert "OARLOCK_GPU_FRACTION" not in told(job("{roles: {worker: {gpus: 1}}}")).env


def gang_of(one: jobs.Job, workers: int = 2) -> list[attempts.Task]:
    names = ["launcher", *["worker"] * workers]
    return [attempts.Task(role=roles.RoleName(name), index=max(0, place - 1)) for place, name in enumerate(names)]


def test_devices_are_hidden_from_tasks_that_asked_for_none() -> None:
    with_devices = machine("n0", devices=4)
    assert told(job("{}"), devices=(2, 3), node=with_devices).gpus == (2, 3)
    assert told(job("{}"), node=with_devices).gpus == ()
    assert told(job("{}")).gpus is None, "where there are none, nothing is hidden"


def test_mpi_s_launcher_sees_the_devices_of_the_workers_beside_it() -> None:
    live = attempts.Attempt(
        number=3,
        started_at=0.0,
        tasks=(
            attempts.Task(role=roles.RoleName.LAUNCHER, index=0, node="n0"),
            attempts.Task(role=roles.RoleName.WORKER, index=0, node="n0", devices=(2,)),
            attempts.Task(role=roles.RoleName.WORKER, index=1, node="n0", devices=(0,)),
            attempts.Task(role=roles.RoleName.WORKER, index=2, node="n1", devices=(1,)),
        ),
    )
    text = "{framework: mpi, roles: {launcher: {cpus: 0}, worker: {count: 3, gpus: 1}}}"
    one, node = job(text, attempts=(live,)), machine("n0", devices=4)
    seen = [assigning.assignment(one, 3, task, node, SETTINGS).gpus for task in live.tasks[:2]]
    assert seen == [(0, 2), (2,)]
    other = job(text.replace("mpi", "plain"), attempts=(live,))
    assert assigning.assignment(other, 3, live.tasks[0], node, SETTINGS).gpus == ()


def test_no_secret_is_in_it_but_the_token() -> None:
    found = told(job("{secrets: [{name: hub-token}]}"))
    assert "hub" not in msgspec.json.encode(found).decode()
    assert SETTINGS.task_secret.decode() not in msgspec.json.encode(found).decode()


def test_only_amounts_of_the_job_file_are_limits() -> None:
    spec = job("{roles: {worker: {}, ps: {cpus: 500m, memory: 1Gi, gpus: 2}}}").spec
    assert assigning.limit(spec, roles.RoleName.WORKER) == holdings.Resources()
    asked = assigning.limit(spec, roles.RoleName.PS)
    assert asked == holdings.Resources(cpus_milli=500, memory_bytes=1 << 30)


def test_mpi_workers_hold_slots_and_the_launcher_fills_them() -> None:
    """Were the command run by workers too, each of them would start all the ranks once more."""
    one = job("{framework: mpi, command: mpirun x, roles: {launcher: {cpus: 100m}, worker: {count: 2, nproc: 4}}}")
    assert told(one, "launcher").command == "mpirun x"
    assert (told(one).command[0], told(one).nproc) == ("sleep", 1)
    gang = gang_of(one)
    assert assigning.limit(one.spec, roles.RoleName.LAUNCHER, gang) == holdings.Resources(), "its workers have no limit"
    said = job("{framework: mpi, roles: {launcher: {cpus: 100m}, worker: {count: 2, max: 3, cpus: 2, memory: 1Gi}}}")
    launcher = roles.RoleName.LAUNCHER
    assert assigning.limit(said.spec, launcher, gang_of(said)) == holdings.Resources(cpus_milli=4100)
    assert assigning.limit(said.spec, launcher, gang_of(said, 3)) == holdings.Resources(cpus_milli=6100), "as it is now"
    free = job("{framework: mpi, roles: {launcher: {cpus: 0, memory: 64Mi}, worker: {count: 2, cpus: 2, memory: 1Gi}}}")
    limit = assigning.limit(free.spec, launcher, gang_of(free))
    assert limit == holdings.Resources(cpus_milli=4000, memory_bytes=(2048 + 64) << 20)
    alone = job("{framework: mpi, command: x, roles: {worker: {nproc: 4}}}")
    assert (told(alone).command, told(alone).nproc) == ("x", 4)


def test_the_type_of_the_gpus_that_it_holds() -> None:
    """The library reports its speed with it."""
    node = msgspec.structs.replace(
        machine("n0", devices=2),
        devices=(nodes.Device(index=0, type="t4"), nodes.Device(index=1, type="a100")),
    )
    spec = job("{roles: {worker: {gpus: 1}}}")
    assert told(spec, devices=(1,), node=node).env["OARLOCK_GPU_TYPE"] == "a100"
    assert told(spec, devices=(0, 1), node=node).env["OARLOCK_GPU_TYPE"] == "a100+t4"
    assert "OARLOCK_GPU_TYPE" not in told(job("{}"), node=node).env


def test_each_life_of_a_task_keeps_its_files_in_a_folder_of_its_own() -> None:
    found = told(job("{files: {ignore: [wandb/], limit: 2G, count: 7}}"), index=3)
    assert found.keep == assignments.Keep(
        "file:///home/a/.oarlock/files/j/worker-3/attempt-3-incarnation-2", ("wandb/",), 2 * 10**9, 7
    )
    assert told(job("{files: {keep: false}}")).keep is None
