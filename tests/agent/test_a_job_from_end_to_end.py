"""A job without any failure, under an agent in the newest and the oldest Python."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest
from tests.agent import rig as rigs
from tests.agent.archives import packed

from oarlock.agent import zipapp


@rigs.EVERY_PYTHON
def test_a_command_runs_and_everything_it_says_arrives(make_rig, python):
    rig = make_rig(python)
    record = rig.run("echo hello; echo trouble >&2; exit 3")
    assert rig.process.returncode == 3
    assert (record["reason"], record["code"], record["signal"], record["killed_by_us"]) == ("exited", 3, None, False)
    assert record["processes"][0]["last_lines"] == ["trouble"]
    assert (rig.server.logs["stdout.0"], rig.server.logs["stderr.0"]) == (b"hello\n", b"trouble\n")
    assert rig.server.exits() == [record]
    assert rig.server.phases() == ["PROCESSING"]


@rigs.EVERY_PYTHON
def test_the_exit_record_has_the_last_step(make_rig, python):
    """Odd values, half a line and other processes' steps aside."""
    rig = make_rig(python)
    events = [
        '{"event": "progress", "step": 6}',
        '{"event": "progress", "step": true}',
        '{"event": "x", "step": 1e9}',
        '{"st',
    ]
    record = rig.run(f"printf '%s\\n' '{chr(10).join(events)}' > $OARLOCK_REPORT/events-0.jsonl; exit 1")
    assert record["step"] == 6
    assert make_rig(python).run("exit 1")["step"] is None


@rigs.EVERY_PYTHON
def test_code_is_fetched_verified_and_run(make_rig, python):
    rig = make_rig(python)
    blob = packed({"train.py": b"import pkg\nprint(pkg.WORD)\n", "pkg/__init__.py": b"WORD = 'unpacked'\n"})
    digest = "sha256:" + hashlib.sha256(blob).hexdigest()
    rig.server.blobs[digest] = blob
    rig.server.blobs_after = "DOWNLOADING"
    record = rig.run(f"{python} train.py", snapshot=digest)
    assert record["reason"] == "exited"
    assert record["code"] == 0, record
    assert rig.server.logs["stdout.0"] == b"unpacked\n"
    assert rig.server.phases() == ["DOWNLOADING", "PROCESSING"]
    asked = [path for _, path, _ in rig.server.heard if path.startswith(("/blobs", "/register"))]
    assert asked == [f"/blobs/{digest}", "/register"], "a task registers once it can start at once"


def test_a_job_without_code_makes_few_requests(rig):
    rig.run("true")
    paths = sorted(path for _, path, _ in rig.server.heard)
    assert paths in (["/orders", "/register", "/report", "/report"], ["/orders", "/register", "/report"])


def test_the_environment_follows_the_protocol(rig):
    rig.server.secrets = {
        "hub-token": {"as": "env", "value": "s3cret-hub"},
        "NETRC": {"as": "file", "value": "machine x password s3cret-file"},
    }
    rig.server.open_barrier(
        round=4,
        files={"cluster/hosts": "a slots={task_dir}\n"},
        processes=[
            {"env": {"RANK": "0", "HOSTS": "{task_dir}/cluster/hosts", "OARLOCK_CHECKPOINTS": "/ckpt"}},
            {"env": {"RANK": "1"}},
        ],
        restore=["/ckpt/a", "/ckpt/b"],
    )
    show = "import json,os,sys; json.dump([dict(os.environ), os.getcwd(), sys.path, os.getsid(0) == os.getpid()], "
    show += "open(os.environ['OUTSIDE'] + '/' + os.environ['OARLOCK_PROCESS'], 'w'))"
    rig.run([sys.executable, "-c", show], nproc=2, env={"RANK": "job", "LR": "1"}, train_path="/t", gpus=[2, 3])
    env, cwd, path, leads = json.loads((rig.outside / "0").read_text())
    job, attempt, role, index, incarnation = rig.key.split("/")
    expected = {
        "RANK": "0", "LR": "1", "HOSTS": f"{rig.directory}/cluster/hosts", "HUB_TOKEN": "s3cret-hub",
        "NETRC_FILE": f"{rig.directory}/secrets/NETRC", "CUDA_VISIBLE_DEVICES": "2,3", "PYTHONUNBUFFERED": "lines",
        "OARLOCK_JOB": job, "OARLOCK_ATTEMPT": attempt, "OARLOCK_ROLE": role, "OARLOCK_INDEX": index,
        "OARLOCK_INCARNATION": incarnation, "OARLOCK_ROUND": "4", "OARLOCK_PROCESS": "0",
        "OARLOCK_TASK_KEY": rig.key, "OARLOCK_TASK_DIR": str(rig.directory),
        "OARLOCK_REPORT": f"{rig.directory}/report", "OARLOCK_RESULTS": f"{rig.directory}/results",
        "OARLOCK_CHECKPOINTS": "/ckpt", "OARLOCK_RESTORE": "/ckpt/a:/ckpt/b",
    }  # fmt: skip
    assert {name: env.get(name) for name in expected} == expected
    assert (cwd, path[1], "/t" in path, leads) == (f"{rig.directory}/code", str(rigs.HOOK), True, True)
    assert (rig.directory / "cluster/hosts").read_text() == f"a slots={rig.directory}\n"
    secret = rig.directory / "secrets/NETRC"
    assert (secret.read_text(), stat.S_IMODE(secret.stat().st_mode)) == ("machine x password s3cret-file", 0o600)
    for_exec = (rig.directory / "env.json").read_text()
    assert "s3cret-hub" not in for_exec
    assert json.loads(for_exec)["RANK"] == "0"
    other, *_ = json.loads((rig.outside / "1").read_text())
    assert (other["RANK"], other["OARLOCK_PROCESS"], other["OARLOCK_CHECKPOINTS"]) == (
        "1", "1", f"{rig.directory}/checkpoints",
    )  # fmt: skip


def test_a_secret_of_the_platform_is_handed_on_as_the_servers_are(rig):
    """The agent has the value in a variable of its own, which no process inherits. It is blanked in the logs."""
    rig.server.secrets = {"hub-token": {"as": "env", "value": None}, "NETRC": {"as": "file", "value": None}}
    variables = {"hub-token": "OARLOCK_SECRET_HUB_TOKEN", "NETRC": "OARLOCK_SECRET_NETRC"}
    rig.env = {"OARLOCK_SECRET_HUB_TOKEN": "from-the-hub", "OARLOCK_SECRET_NETRC": "from-a-file"}
    rig.run('echo "$HUB_TOKEN"; cat "$NETRC_FILE"; env > $OUTSIDE/env', secret_variables=variables)
    assert rig.server.logs["stdout.0"] == b"************\n***********"
    env = (rig.outside / "env").read_text()
    assert "HUB_TOKEN=from-the-hub\n" in env
    assert "from-a-file" not in env
    assert "OARLOCK_SECRET" not in env


def test_a_secret_that_became_one_of_the_platform_later_is_named(rig):
    """The next pod has it."""
    rig.server.secrets = {"hub-token": {"as": "env", "value": None}}
    record = rig.run("true")
    assert record["reason"] == "secret_missing"
    assert "hub-token was changed after this task was made" in record["detail"]


def test_secrets_are_in_no_argument_and_in_no_file_but_their_own(rig):
    rig.server.secrets = {
        "TOKEN": {"as": "env", "value": "tOken-in-env"},
        "KEYFILE": {"as": "file", "value": "tOken-in-file"},
    }
    rig.run("tr '\\0' ' ' < /proc/$PPID/cmdline > $OUTSIDE/agent; tr '\\0' ' ' < /proc/$$/cmdline > $OUTSIDE/self")
    for name in ("agent", "self"):
        assert "tOken" not in (rig.outside / name).read_text()
    holders = [p.name for p in rig.directory.rglob("*") if p.is_file() and b"tOken" in p.read_bytes()]
    assert holders == ["KEYFILE"]


def helper(folder: Path, body: str) -> list[str]:
    path = folder / "helper.py"
    path.write_text(f"import os, sys\nverb, args = sys.argv[1], sys.argv[2:]\n{body}\n")
    return [sys.executable, str(path)]


PYTHON = """#!/bin/sh
echo "python $OF_THE_SHELL $INDEX" >> $TMP_LOG
case "$*" in
*"-m venv"*) for place; do :; done; mkdir -p $place/bin; cp "$0" $place/bin/python ;;
*"-I -c"*) echo '{"version": "3", "prefix": "/u", "base": "/u", "paths": []}' ;;
*"pip install"*) echo "$SAID"; [ -z "$SAID" ] ;;
esac
"""


def python(folder: Path) -> str:
    """Make a Python that makes environments of nothing, and return its folder."""
    path = folder / "bin" / "python"
    path.parent.mkdir()
    path.write_text(PYTHON)
    path.chmod(0o755)
    return str(path.parent)


def test_data_and_results_are_the_helpers_and_the_environment_is_the_agents(rig):
    body = """
log = open(os.environ['TMP_LOG'], 'a')
print(verb, *args, file=log)
if verb == 'fetch':
    os.makedirs(args[1]); open(args[1] + '/rows', 'w').write('1 2 3')
    print('with', os.environ.get('BUCKET_KEY'), file=log)
elif verb == 'store':
    print(sorted(os.listdir(args[0])), os.environ.get('BUCKET_KEY'), file=log)
"""
    blob = packed({"requirements.txt": b"numpy\n"})
    digest = "sha256:" + hashlib.sha256(blob).hexdigest()
    rig.server.blobs[digest] = blob
    rig.server.secrets = {"BUCKET_KEY": {"as": "env", "value": "hush-hush"}}
    log = rig.outside / "log"
    argv = ["/usr/bin/env", f"TMP_LOG={log}", *helper(rig.outside, body)]
    rig.server.blobs_after = "DOWNLOADING"
    rig.begin(
        "cat data/rows; echo $VIRTUAL_ENV $PATH; echo out > $OARLOCK_RESULTS/out; "
        "for _ in $(seq 30000); do [ -e $OUTSIDE/go ] && break; sleep 0.01; done",
        path_env={
            "PATH": f"{python(rig.outside)}:{os.environ['PATH']}",
            "OF_THE_SHELL": "yes",
            "OUTSIDE": str(rig.outside),
            "TMP_LOG": str(log),
        },
        env={"INDEX": "mirror"},
        snapshot=digest,
        helper=argv,
        downloads=[{"source": "s3://bucket/rows", "mount": "data"}],
        requirements="requirements.txt",
        environments=str(rig.outside / "envs"),
        uploads={"source": "results", "to": "s3://bucket/out"},
    )
    rig.server.wait_for(lambda: "PROCESSING" in rig.server.phases())
    (rig.outside / "go").touch()
    record = rig.finish()
    assert record["reason"] == "exited", record
    task, (made,) = rig.directory, [path for path in (rig.outside / "envs").iterdir() if path.is_dir()]
    assert log.read_text().splitlines() == [
        f"fetch s3://bucket/rows {task}/code/data",
        "with hush-hush",
        *["python yes mirror"] * 4,  # what it is, venv, whether there is a pip, and pip
        f"store {task}/results s3://bucket/out",
        "['out'] hush-hush",
    ]
    assert rig.server.logs["stdout.0"].decode().startswith(f"1 2 3{made} {made}/bin:")
    assert rig.server.phases() == ["DOWNLOADING", "PROCESSING", "STORING"]


@pytest.mark.parametrize(("verb", "reason"), [("fetch", "download_failed"), ("store", "store_failed")])
def test_a_helper_that_fails_gives_the_reason_and_its_last_words(rig, verb, reason):
    blob = packed({"requirements.txt": b"numpy\n"})
    digest = "sha256:" + hashlib.sha256(blob).hexdigest()
    rig.server.blobs[digest] = blob
    said = '{"event": "error", "code": "not_found", "message": "no such bucket", "hint": "make it"}'
    body = f"print('/venv')\nif verb == {verb!r}: sys.exit({said!r})"
    record = rig.run(
        "echo > $OARLOCK_RESULTS/out; echo ran > $OUTSIDE/ran",
        snapshot=digest,
        helper=helper(rig.outside, body),
        downloads=[{"source": "s3://bucket/rows", "mount": "data"}],
        uploads={"source": "results", "to": "s3://bucket/out"},
    )
    assert record["reason"] == reason
    assert record["detail"].endswith("failed with code 1: no such bucket; make it")
    assert (rig.outside / "ran").exists() == (verb == "store")
    logged = rig.server.logs.get("stderr.0", b"").decode()
    assert verb == "store" or logged == record["detail"] + "\n", "people look into the log"
    assert rig.server.exits() == [record]


def test_an_environment_that_cannot_be_made_gives_the_reason_and_pips_last_words(rig):
    blob = packed({"requirements.txt": b"nump\n"})
    digest = "sha256:" + hashlib.sha256(blob).hexdigest()
    rig.server.blobs[digest] = blob
    record = rig.run(
        "echo ran > $OUTSIDE/ran",
        snapshot=digest,
        requirements="requirements.txt",
        path_env={
            "PATH": f"{python(rig.outside)}:{os.environ['PATH']}",
            "TMP_LOG": str(rig.outside / "log"),
            "SAID": "No matching distribution found for nump",
            "OUTSIDE": str(rig.outside),
        },
    )
    assert record["reason"] == "environment_failed"
    assert record["detail"].startswith("environment failed with code 1: ")
    assert record["detail"].endswith("requirements.txt` failed:\nNo matching distribution found for nump")
    assert not (rig.outside / "ran").exists()
    assert rig.server.logs["stderr.0"].decode() == record["detail"] + "\n", "people look into the log"


def test_the_last_words_of_a_helper_are_told_whole(rig):
    """pip's reason is in the last of many lines."""
    lines = [f"line {number} " + "x" * 100 for number in range(15)]
    said = json.dumps({"event": "error", "message": "\n".join([*lines, "No matching distribution"]), "hint": "mend it"})
    record = rig.run(
        "true",
        helper=helper(rig.outside, f"sys.exit({said!r})"),
        downloads=[{"source": "s3://bucket/rows", "mount": "data"}],
    )
    assert record["detail"].splitlines()[-2:] == ["No matching distribution", "mend it"]
    assert rig.server.logs["stderr.0"].decode().splitlines()[-2:] == ["No matching distribution", "mend it"]


def test_a_stop_ends_a_download_that_hangs(rig):
    rig.begin(
        "echo ran > $OUTSIDE/ran",
        helper=helper(rig.outside, "import time; time.sleep(1000)"),
        downloads=[{"source": "s3://bucket/rows", "mount": "data"}],
    )
    rig.server.wait_for(lambda: any(report.get("detail") == "data 1/1" for report in rig.server.reports))
    rig.server.order(stop={"grace_s": 5, "reason": "cancel"})
    record = rig.finish()
    assert (record["reason"], record["code"], record["processes"]) == ("stopped", 143, [])
    assert not rigs.processes_with(rig.key)
    assert not (rig.outside / "ran").exists()


def test_progress_checkpoints_and_metrics_flow(rig):
    checkpoint = rig.outside / "ckpt"
    checkpoint.mkdir()
    manifest = '{"format": 1, "step": 5}'
    (checkpoint / "manifest.json").write_text(manifest)
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    events = [
        {"event": "hello", "library": "1", "can_rejoin": True, "can_stack": True},
        {
            "event": "progress",
            "step": 5,
            "loss": 0.5,
            "step_s": 0.25,
            "sync_s": 0.1,
            "local": 8,
            "noise": 90.5,
            "gpu_type": "a100",
            "data_s": 0.02,
            "sent_bytes": 1e6,
            "slowest_rank": 0,
            "odd": 1,
        },
        {"event": "checkpoint", "step": 5, "path": str(checkpoint), "manifest_sha256": digest, "bytes": 9},
        {"event": "checkpoint", "step": 6, "path": str(checkpoint), "manifest_sha256": "0" * 64, "bytes": 9},
    ]
    lines = "".join(json.dumps(event) + "\n" for event in events) + "not json\n[1]\n"
    (rig.outside / "events").write_text(lines)
    (rig.outside / "metrics").write_bytes(bytes(range(256)) * 8192)
    rig.begin(
        "cat $OUTSIDE/events > $OARLOCK_REPORT/events-0.jsonl; cat $OUTSIDE/metrics > $OARLOCK_REPORT/metrics-0.bin;"
        "sleep 1000"
    )
    rig.server.wait_for(lambda: rig.server.checkpoints and any(r.get("progress") for r in rig.server.reports))
    rig.server.wait_for(lambda: len(rig.server.metrics["0"]) == 256 * 8192)
    rig.server.order(stop={"grace_s": 5})
    rig.finish()
    (posted,) = rig.server.checkpoints
    assert (posted["step"], posted["manifest"]) == (5, {"format": 1, "step": 5})
    reports = rig.server.reports
    progress = next(r["progress"] for r in reports if r.get("progress"))
    measured = {"step_s": 0.25, "sync_s": 0.1, "local": 8, "noise": 90.5, "gpu_type": "a100"}
    measured |= {"data_s": 0.02, "sent_bytes": 1e6, "slowest_rank": 0}
    assert progress == {"step": 5, "loss": 0.5, **measured}
    assert next(r["hello"] for r in reports if r.get("hello"))["can_rejoin"] is True
    assert bytes(rig.server.metrics["0"]) == bytes(range(256)) * 8192
    assert "does not have the digest" in (rig.directory / "agent.log").read_text()


def test_a_new_round_is_written_for_the_survivors(rig):
    rig.begin("exec sleep 1000")
    rig.server.wait_for(lambda: rig.server.phases() == ["PROCESSING"])
    rig.server.open_barrier(round=2, files={"hostfile": "b\n"}, processes=[{"env": {"RANK": "7"}}])
    rig.server.order(round=2)
    path = rig.directory / "report/rendezvous.json"
    rigs.until(path.exists, "the second round")
    assert json.loads(path.read_text()) == {"round": 2, "lost": 0, "processes": [{"env": {"RANK": "7"}}], "restore": []}
    assert (rig.directory / "hostfile").read_text() == "b\n"


def test_another_batch_size_is_written_for_the_following_processes(rig):
    rig.begin("exec sleep 1000")
    rig.server.wait_for(lambda: rig.server.phases() == ["PROCESSING"])
    path = rig.directory / "report/batch.json"
    assert not path.exists()
    for batch in ({"local": 32, "accumulate": 2}, {"local": 64, "accumulate": 1, "later": "x"}):
        rig.server.order(batch=batch)
        told = {"local": batch["local"], "accumulate": batch["accumulate"]}
        rigs.until(lambda told=told: path.exists() and json.loads(path.read_text()) == told, "the decision")
    rig.server.order(batch="much")
    rig.server.order(stop={"grace_s": 1})
    rig.finish()
    assert json.loads(path.read_text())["local"] == 64


def test_the_same_sources_make_the_same_bytes(tmp_path, agent):
    again = zipapp.build(tmp_path / "again.pyz")
    assert again.read_bytes() == agent.read_bytes()
    before = again.stat().st_mtime_ns
    zipapp.build(again)
    assert again.stat().st_mtime_ns == before, "existing files are left alone"


def test_a_stop_while_results_are_stored_gives_them_the_grace(rig):
    """The first event wins: the job has ended well, and its results are on their way."""
    slow = "import time\nopen(os.environ['FLAG'] + '/storing', 'w').write('yes\\n'); time.sleep(1)"
    argv = ["/usr/bin/env", f"FLAG={rig.outside}", *helper(rig.outside, slow)]
    rig.begin("echo out > $OARLOCK_RESULTS/out", helper=argv, uploads={"source": "results", "to": "s3://bucket/out"})
    rig.wait_for_file("storing")
    rig.server.order(stop={"grace_s": 20})
    record = rig.finish()
    assert (record["reason"], record["code"]) == ("exited", 0)


def test_a_stop_ends_an_upload_that_takes_longer_than_the_grace(rig):
    slow = "import time\nopen(os.environ['FLAG'] + '/storing', 'w').write('yes\\n'); time.sleep(1000)"
    argv = ["/usr/bin/env", f"FLAG={rig.outside}", *helper(rig.outside, slow)]
    rig.begin("echo out > $OARLOCK_RESULTS/out", helper=argv, uploads={"source": "results", "to": "s3://bucket/out"})
    rig.wait_for_file("storing")
    rig.server.order(stop={"grace_s": 0.2})
    record = rig.finish()
    assert (record["reason"], record["killed_by_us"]) == ("stopped", True)
    assert not rigs.processes_with(rig.key)


def test_an_agent_that_fails_itself_leaves_nothing_running(rig):
    """No record is the failure "exit unknown": the backend will say so. No process is left behind it."""
    rig.begin("echo > $OUTSIDE/started; setsid sleep 1000 & exec sleep 1000")
    rig.wait_for_file("started")
    rig.server.order(stop={"grace_s": "no number at all"})
    assert rig.process.wait(rigs.CEILING_S) == 1
    assert not (rig.directory / "exit.json").exists()
    assert "the agent itself failed" in (rig.directory / "agent.log").read_text()
    assert not rig.user_processes()


def test_a_task_whose_directory_is_taken_away_is_still_ended_and_told(rig):
    rig.begin("echo > $OUTSIDE/started; exec sleep 1000")
    rig.wait_for_file("started")
    rig.server.wait_for(lambda: rig.server.phases() == ["PROCESSING"])
    rigs.until(lambda: shutil.rmtree(rig.directory, ignore_errors=True) or not rig.directory.exists(), "an empty place")
    rig.server.order(stop={"grace_s": 5})
    rig.process.wait(rigs.CEILING_S)
    assert not rig.user_processes()
    assert rig.server.exits()[0]["reason"] in {"stopped", "orphaned"}, "whichever was noticed first"
