"""The main job: people's scripts train together, and everything they would ask has an answer."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch
from tests.e2e import shell as shells

EXAMPLE = Path(__file__).parents[3] / "examples" / "01-digits"

TORCHRUN_SCRIPT = """
    import os, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} sums to {total.item():g}", flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_script_written_for_torchrun_runs_unchanged(shell: shells.Shell) -> None:
    shell.write("plain.py", TORCHRUN_SCRIPT)
    done = shell.do("run", "--workers", "2", "--", "python", "plain.py")
    assert "rank 0 of 2 sums to 2" in done.stdout
    assert "rank 1 of 2 sums to 2" in done.stdout
    assert re.search(r"^worker-1 +\| ", done.stdout, re.MULTILINE), "lines name the rank that printed them"


@pytest.mark.long
def test_nproc_and_torchrun_itself(shell: shells.Shell) -> None:
    shell.write("plain.py", TORCHRUN_SCRIPT)
    done = shell.do("run", "--workers", "1", "--nproc", "2", "--", "python", "plain.py")
    assert "rank 1 of 2 sums to 2" in done.stdout
    done = shell.do("run", "--workers", "2", "--", "torchrun", "plain.py")
    assert "rank 1 of 2 sums to 2" in done.stdout


@pytest.mark.long
def test_the_digits_example(shell: shells.Shell) -> None:
    """The job of `make demo`: two workers, a test accuracy of at least 0.97, metrics and checkpoints to look at."""
    done = shell.do("submit", str(EXAMPLE / "oarlock.yaml"), "--follow", timeout_s=280)
    accuracy = re.search(r"test accuracy:? ([0-9.]+)", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) >= 0.97
    job = shell.job("digits")
    assert job["phase"] == "COMPLETED"
    assert len(job["attempts"]) == 1
    metrics = shell.json("metrics", "digits")
    assert "loss" in json.dumps(metrics)
    results = shell.home / "results" / job["id"]
    assert f"results      {results}" in done.stderr
    weights = torch.load(results / "model.pt", weights_only=True)
    assert weights["9.weight"].shape == (10, 64)
    assert str(results) in shell.do("show", "digits").stdout
    shell.do("rm", "digits")
    assert not results.exists()


def test_exit_code_is_the_jobs(shell: shells.Shell) -> None:
    done = shell.do("run", "--max-restarts", "0", "--", "python", "-c", "raise SystemExit(7)", code=7)
    assert "worker-0" in done.stderr


def test_data_comes_and_results_go(shell: shells.Shell) -> None:
    source = shell.folder / "source"
    source.mkdir()
    (source / "numbers.txt").write_text("1 2 3")
    out = shell.folder / "out"
    shell.write(
        "job.yaml",
        f"""
        name: with-data
        framework: plain
        command: cp data/in/numbers.txt $OARLOCK_RESULTS/copied.txt
        data: [{{source: "file://{source}", mount: data/in}}]
        results: "file://{out}"
        """,
    )
    shell.do("submit", "job.yaml", "--follow")
    assert (out / "copied.txt").read_text() == "1 2 3"


def test_the_files_of_a_job_are_kept_without_being_asked(shell: shells.Shell) -> None:
    """Each task's own; TensorBoard finds the event files; a job that leaves nothing has no directory."""
    shell.write("leaves.sh", 'cd "$OARLOCK_RESULTS"; mkdir run; echo $RANK > run/events.out.tfevents.1.h')
    done = shell.do("run", "--workers", "2", "--name", "leaves", "--", "sh", "leaves.sh")
    results = shell.home / "results" / shell.job("leaves")["id"]
    assert f"results      {results}" in done.stderr
    assert (results / "run" / "events.out.tfevents.1.h").read_text() == "0\n"
    assert (results / "worker-1" / "run" / "events.out.tfevents.1.h").read_text() == "1\n"
    assert shell.do("tensorboard", "leaves", "--write-only").stdout.strip() == str(results)
    nothing = shell.do("run", "--name", "nothing", "--", "true")
    assert "results" not in nothing.stderr
    assert not (shell.home / "results" / shell.job("nothing")["id"]).exists()


def test_plain_tensorflow_and_jax_are_told_their_rank(shell: shells.Shell) -> None:
    known = "os.environ.get('TF_CONFIG') or os.environ.get('JAX_PROCESS_ID')"
    show = f"import os; print({known} or open(os.environ['OARLOCK_CLUSTER']).read())"
    tf = shell.do("run", "--framework", "tensorflow", "--workers", "2", "--", "python", "-c", show)
    assert '"task": {"type": "worker", "index": 1}' in tf.stdout
    jax = shell.do("run", "--framework", "jax", "--workers", "2", "--", "python", "-c", show)
    assert sorted(line.rpartition("| ")[2] for line in jax.stdout.splitlines()) == ["0", "1"]
    plain = shell.do("run", "--framework", "plain", "--", "python", "-c", show)
    assert '"role": "worker"' in plain.stdout


def test_secrets_reach_the_process_and_nothing_else(shell: shells.Shell) -> None:
    shell.do("up", "--detach")
    folder = shell.home / "secrets"
    folder.mkdir(exist_ok=True)
    (folder / "hub-token").write_text("s3cret-value-of-the-hub")
    (folder / "hub-token").chmod(0o600)
    code = "import os; t = os.environ['HUB_TOKEN']; print(len(t), t)"
    done = shell.do("run", "--secret", "hub-token", "--", "python", "-c", code)
    assert "23 " + "*" * 23 in done.stdout
    shell.do("ps")
    for path in shell.home.rglob("*"):
        if path.is_file() and path != folder / "hub-token":
            assert b"s3cret-value-of-the-hub" not in path.read_bytes(), path


def test_a_secret_is_made_used_listed_and_removed(shell: shells.Shell) -> None:
    """A value goes in by stdin, is never shown, and comes out in the jobs that may name it."""
    shell.do("up", "--detach")
    shell.do("secrets", "set", "my-token", code=2)  # nothing on stdin
    command = [shells.OARLOCK, "secrets", "set", "my-token", "--json"]
    made = subprocess.run(
        command, env=shell.env, input="a value of mine\n", capture_output=True, text=True, timeout=280, check=True
    )
    assert json.loads(made.stdout)["name"] == "my-token"
    listed = shell.do("secrets", "list").stdout
    assert "my-token" in listed
    assert "a value of mine" not in listed
    say = "import os; print(len(os.environ['MY_TOKEN']), os.environ['MY_TOKEN'])"
    done = shell.do("run", "--secret", "my-token", "--", "python", "-c", say)
    assert f"{len('a value of mine')} {'*' * len('a value of mine')}" in done.stdout
    shell.do("secrets", "rm", "my-token")
    assert "no secret" in shell.do("run", "--secret", "my-token", "--", "true", code=2).stderr


@pytest.mark.long
def test_tensorboard_files_where_the_job_asks_for_them(shell: shells.Shell) -> None:
    shell.write(
        "logs.py",
        """
        from oarlock import train
        train.init()
        with train.Session(total_steps=3) as session:
            for step in session.steps():
                session.log(loss=1.0)
        """,
    )
    shell.do("run", "--name", "written", "--tensorboard", "--", "python", "logs.py")
    shell.do("run", "--name", "unwritten", "--", "python", "logs.py")
    results = {name: shell.home / "results" / shell.job(name)["id"] for name in ("written", "unwritten")}
    assert list((results["written"] / "tensorboard").glob("events.out.tfevents.*"))
    assert not results["unwritten"].exists()


SERVED_SCRIPT = """
    import os, torch
    from oarlock import train
    world = train.init()
    torch.manual_seed(world.rank)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 2)).double()
    optimizer = torch.optim.Adam(model.parameters())
    train.data_parallel(model, optimizer)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 64, dtype=torch.double, generator=generator), torch.randint(0, 2, (64,), generator=generator)
    batches = train.Batches((x, y), 8, seed=1)
    with train.Session(model=model, optimizer=optimizer, batches=batches, total_steps=8) as session:
        for a, b in session.steps(batches):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
    if world.is_chief:
        torch.save(model.state_dict(), os.path.join(os.environ["OARLOCK_RESULTS"], "model.pt"))
    print(f"rank {world.rank} is done", flush=True)
"""


@pytest.mark.long
def test_parameter_servers_serve_a_job(shell: shells.Shell) -> None:
    """The tasks of the role `ps` run no code of the user, and end with the workers."""
    shell.write("served.py", SERVED_SCRIPT)
    flags = ("--workers", "2", "--ps", "1", "--cpus", "0.5", "--strategy", "ps")
    done = shell.do("run", "--name", "served", *flags, "--", "python", "served.py")
    assert "rank 0 is done" in done.stdout
    assert "rank 1 is done" in done.stdout
    assert "parameter server at 127.0.0.1" in shell.do("logs", "served", "--role", "ps").stdout
    assert (shell.home / "results" / shell.job("served")["id"] / "model.pt").exists()


TELLS = """print(os.environ["OARLOCK_ROLE"], "runs the script", flush=True)"""


@pytest.mark.long
@pytest.mark.parametrize("given", ["nothing", "servers", "servers out of step", "no library"])
def test_without_a_strategy_in_the_job_the_script_runs_in_workers_alone(shell: shells.Shell, given: str) -> None:
    """A task of the role `ps` would train a second model, as rank 0 of 1, and write into the same checkpoints."""
    strategies = {"servers": "strategy='ps'", "servers out of step": "strategy=train.ParameterServers(sync=False)"}
    told = SERVED_SCRIPT.replace("(model, optimizer)", f"(model, optimizer, {strategies.get(given, '')})")
    told = told.replace("total_steps=8", "total_steps=16")  # long enough for a choice by measurement
    script = textwrap.dedent(TORCHRUN_SCRIPT if given == "no library" else told)
    shell.write("served.py", f"import os\n{TELLS}\n{script}")
    flags = ("--workers", "2", "--ps", "1", "--cpus", "0.5")
    done = shell.do("run", "--name", "served", *flags, "--", "python", "served.py")
    ran = [line.rpartition("| ")[2] for line in done.stdout.splitlines() if "runs the script" in line]
    assert ran == ["worker runs the script"] * 2, done.stdout
    assert all(f"rank {rank} " in done.stdout for rank in (0, 1)), done.stdout
    if given in strategies:  # the others may have ended before the server listens
        assert "parameter server at 127.0.0.1" in shell.do("logs", "served", "--role", "ps").stdout
    assert ("from now on. 2 ranks waited" in done.stderr) == (given == "nothing"), done.stderr
    job = shell.job("served")
    assert (job["phase"], len(job["attempts"])) == ("COMPLETED", 1)
    assert {task["phase"] for task in job["attempts"][0]["tasks"] if task["role"] == "worker"} == {"SUCCEEDED"}
