"""The text of a job file: one field is changed, and the rest stays as it was typed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from oarlock.display import jobfields
from oarlock.spec.input import validation
from oarlock.web import jobtext

TEXT = """\
# a job
command: python train.py  # the script
roles:
  worker:  # all of them
    count: 2   # two
    gpus: 1
  ps: {count: 1, cpus: 2}

env:
  A: "1"
checkpoint: {every: 10m}
"""


@pytest.mark.parametrize(
    ("path", "value", "before", "after"),
    [
        ("roles.worker.count", 4, "count: 2   # two", "count: 4   # two"),
        ("roles.worker.memory", "2Gi", "    gpus: 1\n", "    gpus: 1\n    memory: 2Gi\n"),
        ("roles.worker.gpus", None, "    gpus: 1\n", ""),
        ("roles.ps.cpus", None, "{count: 1, cpus: 2}", "{count: 1}"),
        ("roles.chief.count", 1, "cpus: 2}\n", "cpus: 2}\n  chief: {count: 1}\n"),
        ("command", "a: 'b' # c", "python train.py", "'a: ''b'' # c'"),
        ("timeout", "2h", "{every: 10m}\n", "{every: 10m}\ntimeout: 2h\n"),
        ("checkpoint.every", "1h", "{every: 10m}", "{every: 1h}"),
        ("name", "123", "{every: 10m}\n", "{every: 10m}\nname: '123'\n"),
        ("env.B", "2", 'A: "1"\n', "A: \"1\"\n  B: '2'\n"),
    ],
)
def test_one_field_changes_and_comments_stay(path: str, value: Any, before: str, after: str) -> None:
    assert TEXT.count(before) == 1
    assert jobtext.with_value(TEXT, path, value) == TEXT.replace(before, after)


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ("", "command", "a", "command: a\n"),
        ("# only this", "command", "a", "# only this\ncommand: a\n"),
        ("command: a", "roles.worker.gpus", 1, "command: a\nroles: {worker: {gpus: 1}}\n"),
        ("command:\nname: b\n", "command", "a", "command: a\nname: b\n"),
        ("command: |\n  a\n  b\n# end\n", "name", "b", "command: |\n  a\n  b\nname: b\n# end\n"),
        (
            "command: a\ndata:\n- source: b\n  mount: c\n",
            "name",
            "n",
            "command: a\ndata:\n- source: b\n  mount: c\nname: n\n",
        ),
        ("{command: a}\n", "name", "b", "{command: a, name: b}\n"),
        ("command: a\nroles: 3\n", "roles.worker.count", 1, "command: a\nroles:\n  worker:\n    count: 1\n"),
    ],
)
def test_every_form_of_text_takes_a_field(text: str, path: str, value: Any, after: str) -> None:
    assert jobtext.with_value(text, path, value) == after


WORDS = some.one_of(
    some.integers(0, 99), some.booleans(), some.text(alphabet="ab #:'\"{[-\n", max_size=6), some.just("1")
)
RAW = some.dictionaries(
    some.sampled_from(["command", "name", "roles", "env"]),
    some.recursive(
        WORDS, lambda one: some.dictionaries(some.sampled_from(["worker", "count", "A"]), one) | some.lists(one)
    ),
    min_size=1,
)


@given(
    raw=RAW,
    path=some.sampled_from(["name", "roles.worker.count", "env.A"]),
    value=WORDS,
    flow=some.sampled_from([None, True, False]),
)
def test_a_changed_text_means_the_change(raw: Any, path: str, value: Any, flow: Any) -> None:
    import yaml

    text = yaml.safe_dump(raw, default_flow_style=flow)
    changed = validation.plain(jobtext.with_value(text, path, value))
    assert jobtext.value_at(changed, path) == value
    gone = jobtext.with_value(text, path, None)
    assert jobtext.value_at(validation.plain(gone) if gone.strip() else {}, path) is None
    for name in raw:
        if name != path.partition(".")[0]:
            assert changed[name] == raw[name], "the rest stays"


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("command", 2),
        ("roles.worker", 4),
        ("roles.worker.count", 5),
        ("roles.ps.cpus", 7),
        ("roles.worker.nproc", 4),
        ("none", 0),
    ],
)
def test_a_field_is_found_on_its_line(path: str, line: int) -> None:
    assert jobtext.line_of(TEXT, path) == line


def test_every_field_has_its_sentence() -> None:
    paths = {field.path for field in jobfields.fields()}
    assert paths == set(jobfields.HELP)
    assert {"strategy.kind", "data[].mount", "roles.ROLE.gpus", "secrets[].as"} <= paths
    assert next(field for field in jobfields.fields() if field.path == "placement").words == ("pack", "spread")
