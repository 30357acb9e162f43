"""TensorBoard itself reads what we wrote."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from oarlock.train.reporting import tensorboard, tfevents
from oarlock.train.reporting.rows import Row

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tensorboard.backend.event_processing import event_accumulator as accumulators


def scalars(directory: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, about its dependencies
        read = accumulators.EventAccumulator(str(directory), size_guidance={"scalars": 0})
        read.Reload()
    return read


def test_scalars_are_read_back(tmp_path: Path) -> None:
    file = tensorboard.EventFile(tmp_path / "logs")
    rows = [
        Row(step, 1700000000.5 + step, ("loss", "größe/x"), (1 / (step + 1), float(step)))
        for step in (0, 1, 127, 128, 1 << 40)
    ]
    rows.append(Row(7, 1700000000.0, ("odd", "huge"), (math.nan, 1e300)))
    file.write(rows[:2])
    file.write(rows[2:])
    file.close()
    read = scalars(tmp_path / "logs")
    assert read.Tags()["scalars"] == ["loss", "größe/x", "odd", "huge"]
    for column, name in enumerate(rows[0].names):
        got = [(each.step, each.wall_time, each.value) for each in read.Scalars(name)]
        assert got == [(row.step, row.time, pytest.approx(row.values[column], rel=1e-7)) for row in rows[:5]]
    assert math.isnan(read.Scalars("odd")[0].value)
    assert read.Scalars("huge")[0].value == math.inf


def test_a_flipped_bit_is_noticed_by_the_reader(tmp_path: Path) -> None:
    file = tensorboard.EventFile(tmp_path)
    file.write([Row(1, 1.0, ("loss",), (1.0,)), Row(2, 2.0, ("loss",), (2.0,))])
    file.close()
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)
    assert [each.step for each in scalars(tmp_path).Scalars("loss")] == [1]


def test_very_many_rows_are_thinned_but_the_last_is_there(tmp_path: Path) -> None:
    file = tensorboard.EventFile(tmp_path)
    file.write([Row(step, step * 0.001, ("loss",), (float(step),)) for step in range(5000)])
    file.close()
    steps = [each.step for each in scalars(tmp_path).Scalars("loss")]
    assert steps[:1000] == list(range(1000))
    assert len(steps) == 1000 + 40
    assert steps[-1] == 4999


def test_the_checksum_is_crc32c() -> None:
    """The check value of the CRC catalogue, masked: ((crc >> 15 | crc << 17) + 0xa282ead8)."""
    crc = 0xE3069283
    assert tfevents.masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
