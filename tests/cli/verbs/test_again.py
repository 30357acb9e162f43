"""`oarlock submit --again`: an earlier job once more; and `oarlock sessions`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.verbs.test_looking import Typed
from tests.client import live

from oarlock.cli import main
from oarlock.client.synchronous import clients
from oarlock.spec.input import validation


@pytest.fixture
def type_(capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(capsys)


def test_an_earlier_job_is_submitted_once_more(
    type_: Typed, server: live.LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    (folder / "job.yaml").write_text("command: python train.py\nname: first\npriority: 40\n")
    first = json.loads(type_("submit", str(folder / "job.yaml"), "--json"))
    assert first["snapshot"]
    monkeypatch.chdir(tmp_path)  # which has no code
    again = json.loads(type_("submit", "--again", "first", "--name", "second", "--json"))
    assert (again["snapshot"], again["name"]) == (first["snapshot"], "second")
    assert again["spec"] == {**first["spec"], "name": "second"}
    (tmp_path / "edited.yaml").write_text("command: python train.py\nname: third\npriority: 60\n")
    third = json.loads(type_("submit", "edited.yaml", "--again", "first", "--json"))
    assert (third["snapshot"], third["spec"]["priority"]) == (first["snapshot"], 60)
    asked = json.loads(type_("submit", "--again", "first", "--dry-run"))
    assert (asked["snapshot"], asked["spec"]["name"]) == (first["snapshot"], "first")
    with clients.Client() as client:
        client.submit(validation.decode({"command": "true", "name": "bare"}), directory=None, shell={})
    assert not json.loads(type_("submit", "--again", "bare", "--dry-run")).get("shell"), (
        "nor does the job get this shell's"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("submit",), "there is no job file"),
        (("submit", "--again", "nobody"), "--again"),
        (("submit", "--again", "bare", "--dir", "."), "both name the code"),
        (("submit", "--again", "bare", "--no-snapshot"), "both name the code"),
    ],
)
def test_a_refusal_names_the_option(
    server: live.LiveServer, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    with clients.Client() as client:
        client.submit(validation.decode({"command": "true", "name": "bare"}), directory=None)
    assert main.main(words) in (1, 2)
    assert said in capsys.readouterr().err


def test_sessions_are_listed_and_ended(type_: Typed, server: live.LiveServer) -> None:
    with clients.Client() as client:
        for note in ("Firefox", "Chromium"):
            client.begin_session(client.login_code().code, note)
    listed = json.loads(type_("sessions", "list", "--json"))["items"]
    assert sorted(one["note"] for one in listed) == ["Chromium", "Firefox"]
    first = next(one["sha256"] for one in listed if one["note"] == "Firefox")
    assert f"{first[:12]}  Firefox" in type_("sessions", "list")
    type_("sessions", "end", first[:12])
    assert [one["note"] for one in json.loads(type_("sessions", "list", "--json"))["items"]] == ["Chromium"]
    type_("sessions", "end", first[:12], code=1)


def test_a_beginning_that_several_sessions_have_ends_none(
    type_: Typed, server: live.LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with clients.Client() as client:
        for _ in range(2):
            client.begin_session(client.login_code().code)
    assert main.main(["sessions", "end", ""]) == 1
    assert "several of your sessions" in capsys.readouterr().err
    assert len(json.loads(type_("sessions", "list", "--json"))["items"]) == 2
