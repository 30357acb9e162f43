"""Wrong command lines: the message names the fault, its place and the next step; exit code 2, no traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest
from tests.cli import typed
from tests.client import live

from oarlock.cli import main


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    (place / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(place)
    return place


class Typed:
    """A command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main.main(words)
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err


@pytest.fixture
def type_(capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(capsys)


DRY = ("run", "--dry-run", "--no-snapshot")

WRONG = [
    (("pss",), "oarlock ps"),
    (("status",), "`oarlock ps`: List jobs."),
    (("list",), "`oarlock ps`"),
    (("squeue",), "`oarlock ps`"),
    (("queue",), "`oarlock ps`"),
    (("stop", "x"), "`oarlock halt`"),
    (("kill", "x"), "`oarlock cancel`"),
    (("delete", "x"), "`oarlock cancel`"),
    (("get", "jobs"), "`oarlock show`"),
    (("describe", "x"), "`oarlock show`"),
    (("sbatch", "x"), "`oarlock submit`"),
    ((*DRY, "--gpus", "1:v100", "--", "true"), "Write --gpus 1 --gpu-type v100"),
    ((*DRY, "--gpus", "V100:2", "--", "true"), "Write --gpus 2 --gpu-type v100"),
    ((*DRY, "--gpus", "8xA100-80GB", "--", "true"), "Write --gpus 8 --gpu-type a100-80gb"),
    ((*DRY, "--gpus", "gpu:a100:2", "--", "true"), "Write --gpus 2 --gpu-type a100"),
    ((*DRY, "--gpus", "some", "--", "true"), "Write a number: --gpus 2"),
    (("lgos", "x"), "oarlock logs"),
    (("ps", "--jsn"), "--json"),
    (("ps", "--limit", "many"), "--limit"),
    (("ps", "--phase", "RUNNING"), "PROCESSING"),
    (("ps", "--limit", "0"), "--limit"),
    (("show",), "JOB"),
    (("run",), "Usage"),
    (("run", "--detach"), "oarlock run -- python train.py"),
    ((*DRY, "--workers", "0", "--", "true"), "--workers"),
    ((*DRY, "--workers", "1000000", "--", "true"), "10000"),
    ((*DRY, "--workers", "-3", "--", "true"), "--workers"),
    ((*DRY, "--workers", "two", "--", "true"), "--workers"),
    ((*DRY, "--memory", "lots", "--", "true"), "--memory"),
    ((*DRY, "--memory", "9" * 19 + "Ti", "--", "true"), "--memory"),
    ((*DRY, "--gpus", "1.5", "--", "true"), "--gpus"),
    ((*DRY, "--gpus", "nan", "--", "true"), "--gpus"),
    ((*DRY, "--timeout", "soon", "--", "true"), "--timeout"),
    ((*DRY, "--name", "Not A Name", "--", "true"), "--name"),
    ((*DRY, "--name", "n" * 1_000_000, "--", "true"), "--name"),
    ((*DRY, "--env", "1X=2", "--", "true"), "--env"),
    ((*DRY, "--env", "NOT_SET_ANYWHERE", "--", "true"), "--env"),
    ((*DRY, "--data", "s3://b/x", "--", "true"), "SOURCE:MOUNT"),
    ((*DRY, "--data", "/x:../up", "--", "true"), "--data"),
    ((*DRY, "--volume", "claim", "--", "true"), "CLAIM:/PATH"),
    ((*DRY, "--secret", "hub:files", "--", "true"), "--secret"),
    ((*DRY, "--framework", "caffe", "--", "true"), "torch"),
    ((*DRY, "--max-workers", "1", "--workers", "2", "--", "true"), "--max-workers"),
    (("submit", "nowhere.yaml"), "nowhere.yaml"),
    (("logs", "x", "--since", "yesterday"), "10m"),
    (("logs", "x", "--regex"), "--search"),
    (("logs", "x", "-f", "--search", "a"), "--follow"),
    (("logs", "x", "--at", "end", "-f"), "--follow"),
    (("logs", "x", "--at", "end", "--search", "a"), "--search"),
    (("logs", "x", "--before", "3"), "--at"),
    (("logs", "x", "--at", "end", "--after", "5001"), "--after"),
    (("exec", "x"), "COMMAND"),
    (("metrics", "x", "--points", "0"), "--points"),
    (("show", "a/b"), "not a valid name of a job"),
    (("why", ""), "not a valid name of a job"),
    (("logs", ".."), "not a valid name of a job"),
    (("exec", "a/b", "--", "true"), "not a valid name of a job"),
    (("exec", "x", "--index", "1", "--", "true"), "Options go before the job"),
    (("pool", "set", "../x", "--limit", "gpus=1"), "not a valid name of a pool"),
    (("pool", "rm", ""), "not a valid name of a pool"),
    (("secrets", "set", "../../x"), "Use lower-case letters, digits and dashes"),
    (("secrets", "set", "x", "--from-kubernetes", "hub"), "--from-kubernetes: 'hub' does not name a key"),
    (("secrets", "set", "x", "--from-kubernetes", "hub/a b"), "not a valid key of a Secret"),
    (("secrets", "set", "x", "--from-kubernetes", "Hub/a"), "not a valid name of a Secret"),
    (("secrets", "set", "x", "--from-kubernetes", "j-0abc-1-f00/worker-0-1.json"), "one of Oarlock's own"),
    (("secrets", "set", "x", "--from-kubernetes", "hub/a", "--keep-value"), "exclude each other"),
    (("secrets", "rm", "../x"), "not a valid name of a secret"),
    (("pool", "default"), "`oarlock pools`"),
    (("pool", "list"), "`oarlock pools`"),
    (("pool", "ste", "a"), "Did you mean `oarlock pool set`?"),
    (("secrets", "ls"), "`oarlock secrets --help`"),
    (("users", "token", "a/b"), "not a valid name of a user"),
    (("users", "remove", "a/b"), "not a valid name of a user"),
    (("--server", "x"), "oarlock --help"),
    (("ps", "--server", "ftp://x"), "URL"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=lambda value: " ".join(value)[:40] if value else None)
def test_a_wrong_word_is_answered_with_the_right_one(
    type_: Typed, work: Path, words: tuple[str, ...], said: str
) -> None:
    code, out, err = type_(*words)
    assert code == 2
    assert said in out + err
    assert len(err) < 2000


def test_the_script_is_missed_before_anything_is_sent(type_: Typed, work: Path, home: Path) -> None:
    code, _, err = type_("run", "--", "python", "trian.py")
    assert code == 2
    assert "Did you mean `train.py`?" in err
    assert not (home / "server.json").exists(), "no server was started for it"
    (work / "job.yaml").write_text("command: python trian.py\n")
    code, _, err = type_("plan", "job.yaml")
    assert (code, "Did you mean `train.py`?" in err) == (2, True), "a job that submit refuses has no now or later"
    (work / "job.yaml").write_text("command: x\ndependencies: needs.txt\n")
    code, _, err = type_("plan", "job.yaml")
    assert (code, f"'needs.txt' in {work}" in err) == (2, True)
    assert type_("run", "--dry-run", "--", "python", "/abs/train.py")[0] == 0
    assert type_("run", "--dry-run", "--", "python", "-m", "nope")[0] == 0
    assert type_("run", "--dry-run", "cd x && python nope.py")[0] == 0
    assert type_("run", "--dry-run", "--data", "/x:fetched", "--", "python", "fetched/run.py")[0] == 0


def test_a_script_that_is_ignored_is_missed_too(type_: Typed, work: Path) -> None:
    (work / ".oarlockignore").write_text("train.py\n")
    code, _, err = type_("run", "--dry-run", "--", "python", "train.py")
    assert code == 2
    assert "left out of the snapshot" in err


def test_a_file_that_is_left_out_is_named(type_: Typed, work: Path) -> None:
    (work / ".gitignore").write_text("*.bin\n")
    (work / "model.bin").write_bytes(b"x")
    code, out, err = type_("run", "--dry-run", "--", "python", "train.py")
    assert code == 0
    assert "model.bin" in err
    assert json.loads(out)["snapshot"].startswith("sha256:")


def test_a_snapshot_over_the_limit_names_the_largest_files(type_: Typed, work: Path) -> None:
    for number in range(12):
        (work / f"big-{number:02}.bin").write_bytes(bytes(1000 + number))
    code, _, err = type_("run", "--dry-run", "--snapshot-limit", "5k", "--", "python", "train.py")
    assert code == 1
    assert err.count(".bin") == 10
    assert "big-11.bin" in err
    assert ".oarlockignore" in err


def test_a_link_out_of_the_directory_is_refused(type_: Typed, work: Path) -> None:
    (work / "link").symlink_to("/etc/passwd")
    code, _, err = type_("run", "--dry-run", "--", "python", "train.py")
    assert code == 2
    assert "link" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("command: x\nworkers: 2\n", "workers"),
        ("command: x\nroles: {worker: {gpu: 1}}\n", "gpus"),
        ("command: [\n", "line"),
        ("- a\n- b\n", ""),
        ("command: !!python/object:os.system x\n", "tag"),
        ("a: &a [x]\nb: *a\n", "anchors"),
        ("\0", ""),
        ("", ""),
    ],
)
def test_a_malformed_job_file_is_answered_with_its_place(type_: Typed, work: Path, text: str, said: str) -> None:
    (work / "job.yaml").write_text(text)
    for verb in (("submit",), ("plan",), ("run", "--file")):
        code, _, err = type_(*verb, "job.yaml")
        assert code == 2, (verb, err)
        assert said in err
        assert "Error:" in err


def test_no_server_is_said_where_none_is_started(type_: Typed, home: Path) -> None:
    for words in (("ps",), ("show", "x"), ("nodes",), ("cancel", "x"), ("exec", "x", "ls")):
        code, _, err = type_(*words)
        assert code == 1
        assert "oarlock up" in err
    assert not home.exists(), "looking makes nothing"


def test_a_named_server_that_does_not_answer_is_an_error_and_none_is_started(
    type_: Typed, work: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = type_("run", "--server", "http://127.0.0.1:9", "--", "python", "train.py")
    assert (code, "--server" in err) == (1, True)
    monkeypatch.setenv("OARLOCK_SERVER", "http://127.0.0.1:9")
    code, _, err = type_("run", "--", "python", "train.py")
    assert (code, "OARLOCK_SERVER" in err) == (1, True)
    assert not (home / "server.json").exists()


def test_a_wrong_token_is_said(type_: Typed, server: live.LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = type_("ps", "--token", "wrong")
    assert code == 1
    assert "oarlock login" in err


MOMENTS = [
    (words, option)
    for words, options in {
        ("ps",): ("--since", "--until"),
        ("logs", "any"): ("--since", "--until"),
        ("nodes",): ("--since", "--until"),
        ("pools",): ("--since",),
        ("usage",): ("--since",),
        ("simulate",): ("--recorded",),
        ("simulate", "--on-server"): ("--recorded",),
    }.items()
    for option in options
]


@pytest.mark.parametrize(("words", "option"), MOMENTS)
def test_a_wrong_moment_names_its_option(
    type_: Typed, server: live.LiveServer, words: tuple[str, ...], option: str
) -> None:
    code, _, err = type_(*words, option, "yesterday")
    assert code == 2
    assert err.startswith(f"Error: {option}: 'yesterday' is not a valid time"), err


def test_every_option_that_names_a_moment_is_tried() -> None:
    context = click.Context(main.root, info_name="oarlock")
    commands = {verb: main.root.get_command(context, verb) for verb in main.root.list_commands(context)}
    found = {
        (verb, option)
        for verb, command in commands.items()
        for one in (command.params if command is not None else ())
        for option in one.opts
        if option in {"--since", "--until", "--recorded"}
    }
    length = {("simulate", "--until")}  # of the simulation
    assert found - length == {(words[0], option) for words, option in MOMENTS}


def test_errors_for_programs_are_json(type_: Typed, server: live.LiveServer) -> None:
    code, out, err = type_("show", "nobody", "--json")
    assert (code, out) == (1, "")
    assert json.loads(err)["error"]["code"] == "not_found"


def test_a_failure_of_ours_shows_no_traceback_unless_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("never meant")

    monkeypatch.setattr("oarlock.cli.command.open_client", fail)
    assert main.main(["ps"]) == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError: never meant" in said
    assert "OARLOCK_DEBUG=1" in said
    assert "Traceback" not in said
    monkeypatch.setenv("OARLOCK_DEBUG", "1")
    assert main.main(["ps"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_words_of_other_tools_are_none_of_ours() -> None:
    from oarlock.cli import foreign

    known = dict.fromkeys(main.VERBS, "x")
    ours = {verb for verbs in foreign.MEANT for verb in verbs.split()}
    assert ours <= set(known), "a suggested verb exists"
    words = [word for words in foreign.MEANT.values() for word in words.split()]
    assert len(words) == len(set(words)), "one meaning for each"


@pytest.mark.parametrize("home", ["file", "file/below", "/proc/nowhere"])
def test_a_home_that_cannot_be_written_is_told_as_one(
    home: str, tmp_path: Path, work: Path, type_: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / home
    monkeypatch.setenv("OARLOCK_HOME", str(place))
    for words in (("run", "--", "true"), ("up", "--detach")):
        code, _, err = type_(*words)
        assert code == 1
        assert f"Oarlock's home {place} cannot be written" in err
        assert "Set OARLOCK_HOME to a directory that you may write." in err


def test_a_reader_that_leaves_is_no_error(server: live.LiveServer) -> None:
    import subprocess

    job = server.submit(max_restarts=0)
    server.launch(job.id)
    server.process(job.id)
    server.print(job.id, "line\n" * 100_000)
    shell = f"{typed.COMMAND[0]} -m oarlock.cli.main logs {job.name} | head -1"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=280, check=False)
    assert (done.stdout, done.stderr) == ("line\n", "")


def test_control_characters_of_names_never_reach_a_terminal() -> None:
    from oarlock.cli.output import terminal

    assert terminal.clean("a\x1b[31mb\x1b]0;title\x07c\x9b2Jd\x07\re\u202ef") == "abcdef"
    assert terminal.clean("tab\tand ünïcode 漢字") == "tab\tand ünïcode 漢字"
    assert terminal.clean("half an escape \x1b[") == "half an escape "
    assert terminal.shown_line("10%\r20%\r30%") == "30%"


def test_flags_make_the_job_that_a_file_would(type_: Typed, work: Path) -> None:
    flags = (
        "--workers 2 --ps 1 --chief --evaluator --nproc 2 --gpus 1 --gpu-type h100 --gpu-type a100 --cpus 500m "
        "--memory 2Gi --pool p --name n --framework tensorflow --data s3://b/x:data --volume c:/v:ro --secret hub:file "
        "--results s3://b/out --checkpoint-every 10m --checkpoint-to s3://b/c --keep 2 --priority 7 --not-preemptible "
        "--timeout 1h --grace 5s --hang-timeout 1m --freeze 2m --max-restarts 1 --placement spread --same rack "
        "--tensorboard --env A=1 --env B=x=y"
    )
    code, out, _ = type_("run", "--dry-run", "--no-snapshot", *flags.split(), "--", "python", "x.py", "--lr", "1")
    assert code == 0
    beside = {"cpus": "500m", "memory": "2Gi"}
    computing = {"nproc": 2, "gpus": 1.0, "gpu_type": ["h100", "a100"], **beside}
    assert json.loads(out)["spec"] == {
        "command": ["python", "x.py", "--lr", "1"],
        "name": "n",
        "pool": "p",
        "framework": "tensorflow",
        "roles": {"worker": {"count": 2, **computing}, "chief": computing, "ps": beside, "evaluator": beside},
        "data": [{"source": "s3://b/x", "mount": "data"}],
        "volumes": [{"claim": "c", "mount": "/v", "read_only": True}],
        "secrets": [{"name": "hub", "as": "file"}],
        "results": "s3://b/out",
        "checkpoint": {"to": "s3://b/c", "every": "10m", "keep": 2},
        "priority": 7,
        "preemptible": False,
        "max_restarts": 1,
        "timeout": "1h",
        "grace": "5s",
        "hang_timeout": "1m",
        "freeze": "2m",
        "placement": "spread",
        "topology": {"same": "rack"},
        "env": {"A": "1", "B": "x=y"},
        "tensorboard": True,
    }


def test_flags_go_before_a_job_file(type_: Typed, work: Path) -> None:
    (work / "job.yaml").write_text(
        "command: python train.py\nname: a\nenv: {A: '1'}\nroles: {worker: {count: 3, cpus: 2}}\n"
    )
    code, out, _ = type_("run", "--dry-run", "--file", "job.yaml", "--workers", "1", "--env", "B=2", "--name", "b")
    spec = json.loads(out)["spec"]
    assert code == 0
    assert spec["roles"]["worker"] == {"cpus": 2}
    assert spec["env"] == {"A": "1", "B": "2"}
    assert (spec["name"], spec["command"]) == ("b", "python train.py")


def test_the_shell_is_told_to_this_machine_only(type_: Typed, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    assert json.loads(type_(*DRY, "true")[1])["shell"]["VIRTUAL_ENV"] == "/venv"
    assert json.loads(type_(*DRY, "--server", "https://elsewhere.example", "true")[1])["shell"] == {}


def test_help_of_every_verb_fits_80_columns(type_: Typed) -> None:
    for verb in main.VERBS:
        code, out, _ = type_(verb, "--help")
        assert code == 0
        assert max(map(len, out.splitlines())) <= 80, verb


def test_every_verb_can_answer_a_program() -> None:
    """But for exec, whose output is its command's."""
    import click

    context, without = click.Context(main.root), set()
    for verb in main.VERBS:
        command = main.root.get_command(context, verb)
        assert command is not None
        for one in command.commands.values() if isinstance(command, click.Group) else [command]:
            if not any("--json" in option.opts for option in one.params):
                without.add(one.name)
    assert without == {"exec"}


def test_each_verb_s_line_in_help_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import click

    context = click.Context(main.root)
    for verb, (_, text) in main.VERBS.items():
        command = main.root.get_command(context, verb)
        assert command is not None
        assert command.name == verb
        assert command.short_help == text


def test_the_working_directory_s_environment_is_not_read_on_import() -> None:
    assert "OARLOCK_SERVER" not in os.environ
