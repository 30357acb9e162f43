"""Bad job files: each gets the path of the field, the reason, and the next step."""

from __future__ import annotations

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from oarlock.spec import errors, jobfile, roles
from oarlock.spec.input import quantities, validation

REFUSED = [
    # what was written, the path that is named, words that must be in the answer
    ("nam: y\ncommand: x", "nam", "`name`"),
    ("command: x\nroles: {worker: {gpuz: 1}}", "roles.worker.gpuz", "`gpus`"),
    ("command: x\nroles: {wroker: {}}", "roles", "`worker`"),
    ("command: x\nroles: {worker: {count: 0}}", "roles.worker.count", "between 1 and 10000"),
    ("command: x\nroles: {worker: {count: 1000000}}", "roles", "too many"),
    ("command: x\nroles: {worker: {count: 99999999999999999999999999}}", "roles", "too many"),
    ("command: x\nroles: {worker: {count: 2, min: 3}}", "roles.worker.min", "between 1 and 2"),
    ("command: x\nroles: {worker: {count: 2, max: 1}}", "roles.worker.max", "between 2"),
    ("command: x\nroles: {worker: {count: two}}", "roles.worker.count", "whole number"),
    ("command: x\nroles: {worker: {memory: -2Gi}}", "roles.worker.memory", "512Mi"),
    ("command: x\nroles: {worker: {memory: 99999999Pi}}", "roles.worker.memory", "out of range"),
    ("command: x\nroles: {worker: {cpus: -1}}", "roles.worker.cpus", "out of range"),
    ("command: x\nroles: {worker: {cpus: .nan}}", "roles.worker.cpus", "out of range"),
    ("command: x\nroles: {worker: {gpus: '1:v100'}}", "roles.worker.gpus", "Write gpus: 1, gpu_type: v100"),
    ("command: x\nroles: {worker: {gpus: '2'}}", "roles.worker.gpus", "without quotes"),
    ("command: x\nroles: {worker: {gpus: 1.5}}", "roles.worker.gpus", "whole number"),
    ("command: x\nroles: {worker: {gpus: 0.001}}", "roles.worker.gpus", "too little to be a share"),
    ("command: x\nroles: {worker: {gpus: .nan}}", "roles.worker.gpus", "out of range"),
    ("command: x\nroles: {worker: {gpus: .inf}}", "roles.worker.gpus", "out of range"),
    ("command: x\nroles: {}", "roles", "at least one"),
    ("command: x\nroles: {chief: {count: 2}}", "roles.chief.count", "one chief"),
    ("command: x\ncommand: y", "", "stands twice"),
    ("a: &a [1]\nb: *a", "", "anchors and aliases"),
    ("command: !!python/object/apply:os.system [ls]", "", "tag"),
    ("[1]", "", "the job file is not a mapping"),
    ("", "", "the job file is empty"),
    ("# nothing yet", "", "the job file is empty"),
    ("name: x", "", "`command`"),
    ("command: ''", "command", "empty"),
    ("command: []", "command", "empty"),
    ("command: [a, 1]", "command[1]", "text"),
    ('command: "a\\0b"', "command", "NUL"),
    ('command: "\\ud800"', "command", "Unicode"),
    (f"command: {'x' * 70_000}", "command", "too long"),
    (f"command: x\nname: {'n' * 1_000_000}", "name", "not a valid name"),
    ("command: x\nname: Ä", "name", "lower-case"),
    ("command: x\npool: a/b", "pool", "lower-case"),
    ("command: x\nenv: {A: 1}", "env.A", "in quotes"),
    ("command: x\nmemory: 2Gi", "memory", "`roles.worker.memory`"),
    ("command: x\nworkers: 2", "workers", "`roles.worker.count`"),
    ("command: x\nroles: {worker: {coun: 2}}", "roles.worker.coun", "`count`"),
    ("command: x\nenv: {OARLOCK_JOB: a}", "env.OARLOCK_JOB", "Oarlock"),
    ("command: x\nenv: {'A=B': a}", "env", "variable"),
    ("command: x\ndata: [{source: a, mount: ../b}]", "data[0].mount", "working directory"),
    ("command: x\ndata: [{source: a, mount: /b}]", "data[0].mount", "working directory"),
    ("command: x\ndata: [{source: a, mount: b}, {source: c, mount: b}]", "data[1].mount", "taken"),
    ("command: x\ndata: [{sorce: a, mount: b}]", "data[0].sorce", "`source`"),
    *(
        (f"command: x\nvolumes: [{{claim: a, mount: '{place}'}}]", "volumes[0].mount", why)
        for place, why in (
            ("data", "absolute"),
            ("/", "root"),
            ("//a", "plain path"),
            ("/a/../b", "plain path"),
            ("/a:b", "plain path"),
            ("/dev/shm", "taken"),
            ("/oarlock/home", "taken"),
        )
    ),
    ("command: x\ndependencies: /etc/passwd", "dependencies", "working directory"),
    ("command: x\nsecrets: [{name: a, as: foo}]", "secrets[0].as", "env, file"),
    ("command: x\nsize: 3-v100", "size", "There are 1-v100, 2-v100, 4-v100, 8-v100."),
    ("command: x\nsize: 2-a10", "size", "`2-a10g`"),
    ("command: x\nsize: huge", "size", "oarlock sizes"),
    ("command: x\ntimeout: 0", "timeout", "more than nothing"),
    ("command: x\ntimeout: 10q", "timeout", "10m"),
    ("command: x\ncheckpoint: {every: 10q}", "checkpoint.every", "10m"),
    ("command: x\ncheckpoint: {keep: 0}", "checkpoint.keep", "between 1"),
    ("command: x\ncheckpoint: {to: 'http://host/ckpt'}", "checkpoint.to", "file://, s3://, gs://"),
    ("command: x\ncheckpoint: {to: 's3:///ckpt'}", "checkpoint.to", "BUCKET"),
    ("command: x\ncheckpoint: {to: ckpt}", "checkpoint.to", "absolute path"),
    ("command: x\nresults: https://host/out", "results", "nothing can be stored"),
    ("command: x\nresults: file://out", "results", "file:///absolute/path"),
    ("command: x\npriority: 5000", "priority", "between 0 and 1000"),
    ("command: x\nframework: pytorch", "framework", "`torch`"),
    ("command: x\nstrategy: {kind: ring}", "strategy.kind", "allreduce"),
    ("command: x\nstrategy: {sync: false}", "strategy.sync", "kind: ps"),
    ("command: x\nstrategy: {kind: ps, staleness: 2}", "strategy.staleness", "sync: false"),
    ("command: x\nstrategy: {kind: ps, sync: false, staleness: -1}", "strategy.staleness", "between 0"),
    ("command: x\nstrategy: {kind: ps, backup: 1}", "strategy.backup", "between 0 and 0"),
    ("command: x\nstrategy: {bucket_bytes: best}", "strategy.bucket_bytes", "tuned"),
    ("command: x\nstrategy: {bucket_bytes: 0}", "strategy.bucket_bytes", "4194304"),
    ("command: x\nstrategy: {kind: ps, bucket_bytes: 1}", "strategy.bucket_bytes", "allreduce"),
    ("command: x\nstrategy: {compression: dgc, bucket_bytes: tuned}", "strategy.bucket_bytes", "no groups"),
    ("command: x\nstrategy: {kind: ps}", "strategy.kind", "ps: {count: 1}"),
    ("command: x\nroles: {ps: {}}\nstrategy: {kind: ps}", "strategy.kind", "ps: {count: 1}"),
    ("command: x\nroles: {ps: {}}", "roles", "ps: {count: 1}"),
    ("command: x\nroles: {ps: {}}\nstrategy: {kind: allreduce}", "roles", "ps: {count: 1}"),
    ("command: x\nroles: {worker: {}, ps: {on_success: all}}", "roles.ps.on_success", "until the workers"),
    ("command: x\nroles: {chief: {}, ps: {on_success: job}}\nstrategy: {kind: none}", "roles.ps.on_success", "until"),
    (
        "command: x\nframework: tensorflow\nroles: {worker: {}, ps: {}}\nstrategy: {kind: ps}",
        "strategy.kind",
        "runs the command",
    ),
    (
        "command: x\nroles: {worker: {}, ps: {}}\nstrategy: {kind: ps, compression: dgc}",
        "strategy.compression",
        "allreduce",
    ),
    (
        "command: x\nroles: {worker: {}, ps: {}}\nstrategy: {kind: auto, compression: fp16}",
        "strategy.compression",
        "allreduce",
    ),
    (
        "command: x\nroles: {worker: {count: 3}}\nstrategy: {kind: ps, sync: false, backup: 1}",
        "strategy.backup",
        "sync: true",
    ),
    ("x: " + "[" * 100 + "]" * 100, "", "nested too deeply"),
    ("{" * 5000, "", "YAML"),
    ("command: x\n\tname: y", "", "line 2"),
    ("1: 2", "", "not text"),
]


@pytest.mark.parametrize(("written", "path", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused(written: str, path: str, words: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        validation.load(written)
    said = str(caught.value)
    assert caught.value.path == path
    assert words in said
    assert caught.value.hint
    assert len(said) < 1000, "a message is for reading"


def test_a_bomb_is_too_large() -> None:
    with pytest.raises(errors.TooLarge):
        validation.load("a: " + "x" * 2_000_000)


def test_the_designs_example_is_accepted() -> None:
    spec = validation.load("""
name: digits
command: python train.py --epochs 5
roles:
  worker: {count: 2, min: 1, max: 8, nproc: 1, cpus: 1, memory: 2Gi, gpus: 0, gpu_type: [h100, a100],
           gpu_memory: 40Gi, on_failure: attempt}
  ps: {count: 1, cpus: 1}
strategy: {kind: allreduce, compression: none, bucket_bytes: tuned}
data: [{source: s3://bucket/digits, mount: data/digits}]
volumes: [{claim: imagenet, mount: /data, read_only: true}]
secrets: [{name: hub-token, as: env}]
checkpoint: {to: s3://bucket/ckpt, every: 10m, keep: 3}
timeout: 12h
topology: {same: rack, required: false}
env: {OMP_NUM_THREADS: "1"}
tensorboard: true
""")
    assert spec.roles[roles.RoleName.WORKER].max == 8
    assert spec.secrets[0].form is jobfile.SecretForm.ENV


def test_a_compression_beside_servers_leaves_the_choice_to_the_library() -> None:
    """It takes allreduce then, unless the script names `ps`."""
    validation.load("command: x\nroles: {worker: {}, ps: {}}\nstrategy: {compression: fp16}")


def test_an_edit_is_judged_by_what_it_changes() -> None:
    """A stored spec may have what is refused today."""
    stored = jobfile.JobSpec(command="x", strategy=jobfile.Strategy(sync=True), max_restarts=-1)
    validation.judge(msgspec.structs.replace(stored, priority=60), stored=stored)
    with pytest.raises(errors.InvalidInput) as caught:
        validation.judge(msgspec.structs.replace(stored, priority=5000), stored=stored)
    assert caught.value.path == "priority"


def test_a_renamed_field_is_refused_with_its_new_name() -> None:
    with pytest.raises(errors.UnknownField) as refused:
        validation.load("{command: a, servers: apart}")
    assert refused.value.hint == "Did you mean `ps_placement`?"


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_PLAIN = st.deferred(
    lambda: _LEAVES | st.lists(_PLAIN, max_size=3) | st.dictionaries(st.text(max_size=10), _PLAIN, max_size=3)
)


@hypothesis.given(_PLAIN)
def test_whatever_comes_the_answer_is_a_spec_or_an_error_of_ours(raw: object) -> None:
    hints = []
    for tried in (raw, {"command": "x", "roles": raw}, {"command": "x", "env": raw}, {"command": raw}):
        try:
            validation.decode(tried)
        except errors.OarlockError as error:
            hints.append(error.hint)
    assert all(hints)


@pytest.mark.parametrize(
    ("written", "amount"),
    [("2Gi", 2 << 30), ("1.5G", 1_500_000_000), ("512Mi", 512 << 20), (1024, 1024), ("10", 10), ("1 GiB", 1 << 30)],
)
def test_memory(written: str | int, amount: int) -> None:
    assert quantities.memory_bytes(written) == amount


@pytest.mark.parametrize(
    ("written", "amount_s"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172_800), (1.5, 1.5), ("45", 45), ("500ms", 0.5)],
)
def test_durations(written: str | float, amount_s: float) -> None:
    assert quantities.seconds(written) == amount_s


@pytest.mark.parametrize("written", ["", "m", "-1s", "1x", "1h-3m", "1e3s", "٣s", "inf", "nan", "9" * 30])
def test_no_duration(written: str) -> None:
    with pytest.raises(errors.InvalidInput):
        quantities.seconds(written)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("batch: {size: 0}", "batch.size"),
        ("batch: {size: 64, max: 32}", "batch.max"),
        ("batch: {size: 64, local_max: 0}", "batch.local_max"),
        ("batch: {size: 64, local_min: 8, local_max: {t4: 16, a100: 4}}", "batch.local_max.a100"),
        ("batch: {size: 64, local_max: {}}", "batch.local_max"),
        ("batch: {size: 64, local_max: {t4: many}}", "batch.local_max...."),
    ],
)
def test_bounds_of_a_batch_that_cannot_hold(text: str, path: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        validation.load(f"command: a\n{text}\n")
    assert caught.value.path == path
    assert caught.value.hint


def test_a_batch_is_bounded_by_one_number_or_by_type() -> None:
    plain = validation.load("{command: a, batch: {size: 64, local_max: 32}}").batch
    named = validation.load("{command: a, batch: {size: 64, max: 512, local_max: {t4: 16, a100: 128}}}").batch
    assert plain is not None
    assert named is not None
    assert plain.on("t4") == plain.on("") == (64, 64, 1, 32)
    assert [named.on(name).local_max for name in ("a100", "t4", "h100", "")] == [128, 16, 16, 16]
