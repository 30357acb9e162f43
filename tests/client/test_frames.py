"""Metrics as a frame of pandas, from both clients; a clear word where pandas is not there."""

from __future__ import annotations

import sys

import pandas as pd
import pytest
from tests.client import driven, live

from oarlock.client import answers
from oarlock.spec import errors
from oarlock.spec.hints import extras

METRICS = answers.Metrics(
    names=("loss", "lr"),
    series=(
        answers.Series(
            task="worker-0",
            process=0,
            name="loss",
            points=(answers.Point(1, 1_700_000_000.25, 0.5), answers.Point(2, 1_700_000_001.0, None)),
            count=2,
        ),
        answers.Series(
            task="worker-1", process=1, name="lr", points=(answers.Point(7, 1_700_000_002.0, 1e-3),), count=1
        ),
    ),
)


def test_a_row_for_each_point() -> None:
    frame = METRICS.to_pandas()
    assert list(frame.columns) == ["task", "process", "name", "step", "time", "value"]
    assert frame[["task", "process", "name", "step"]].values.tolist() == [
        ["worker-0", 0, "loss", 1],
        ["worker-0", 0, "loss", 2],
        ["worker-1", 1, "lr", 7],
    ]
    assert frame["value"].tolist()[0::2] == [0.5, 1e-3]
    assert pd.isna(frame["value"][1])
    assert frame["time"][0] == pd.Timestamp("2023-11-14T22:13:20.250Z")
    assert frame.pivot_table(index="step", columns="name", values="value").loc[1, "loss"] == 0.5


def test_no_metrics_are_an_empty_frame_of_the_same_columns() -> None:
    empty = answers.Metrics().to_pandas()
    assert (len(empty), list(empty.dtypes)) == (0, list(METRICS.to_pandas().dtypes))


def test_the_metrics_of_a_job_are_a_frame(server: live.LiveServer, new_client: driven.NewClient) -> None:
    job = server.submit(name="train")
    with new_client() as client:
        assert client.metrics(job.id).to_pandas()["step"].tolist() == [1]


def test_without_pandas_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(errors.InvalidInput, match="pandas is not installed") as caught:
        METRICS.to_pandas()
    assert caught.value.hint == f"Install it: {extras.command('pandas')}"


def test_the_clients_import_no_pandas_by_themselves() -> None:
    import subprocess

    code = "import sys, oarlock; oarlock.Client().close(); sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
