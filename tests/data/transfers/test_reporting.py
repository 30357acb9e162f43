"""The progress of a transfer, as lines of JSON, and how often it is told."""

from __future__ import annotations

import json
import types

import pytest

from oarlock.data.transfers import reporting


def said(told: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in told.splitlines()]


def test_a_meter_counts_files_and_bytes_and_tells_them_twice_a_second(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(reporting, "time", types.SimpleNamespace(monotonic=lambda: now))
    meter = reporting.Meter("fetched", 2, 4096)
    meter.moved(1024)
    now += 0.4
    meter.moved(1024)
    meter.finished_file()
    now += 0.1
    meter.moved(0)
    meter.moved(2048)
    meter.done()
    told = said(capsys.readouterr().err)
    assert [line["moved"] for line in told] == [
        {"files": 0, "total_files": 2, "bytes": 1024, "total_bytes": 4096},
        {"files": 1, "total_files": 2, "bytes": 2048, "total_bytes": 4096},
        {"files": 1, "total_files": 2, "bytes": 4096, "total_bytes": 4096},
    ]
    assert {line["event"] for line in told} == {"progress"}
    assert str(told[-1]["detail"]).endswith("1 of 2 files")


def test_without_a_total_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    reporting.Meter("stored", 1, None).done()
    (line,) = said(capsys.readouterr().err)
    assert line["moved"] == {"files": 0, "total_files": 1, "bytes": 0, "total_bytes": None}
    assert " of " not in str(line["detail"]).partition(",")[0]
