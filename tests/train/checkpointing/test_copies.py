"""Copies of a state: their content, the memory that tensors share, and the memory that is used again."""

from __future__ import annotations

import mmap
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oarlock.train.checkpointing import copies


def test_a_copy_stays_as_it_is_while_the_state_changes() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    plain: dict[str, Any] = {"list": [1, {"deep": torch.ones(2)}], "tuple": (torch.ones(1), "x"), "set": {1}}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = copies.Copies().of({"model": model.state_dict(), **plain})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    plain["list"][1]["deep"].add_(1)
    plain["list"].append(2)
    plain["set"].add(2)
    assert made["model"].keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(made["model"][name], value)
    assert type(made["model"]) is OrderedDict
    assert made["model"]._metadata == model.state_dict()._metadata
    assert len(made["list"]) == 2
    assert made["list"][1]["deep"].tolist() == [1, 1]
    assert made["tuple"][1] == "x"
    assert made["set"] == {1}


def test_tensors_that_share_memory_share_it_in_the_copy() -> None:
    whole = torch.arange(12.0).view(3, 4)
    state = {"whole": whole, "row": whole[1], "turned": whole.t(), "empty": torch.empty(0), "number": torch.tensor(3)}
    made = copies.Copies().of(state)
    for name, tensor in state.items():
        assert torch.equal(made[name], tensor)
        assert made[name].stride() == tensor.stride()
    made["whole"][1, 2] = -1
    assert made["row"][2] == made["turned"][2, 1] == -1
    assert whole[1, 2] == 6


def test_the_memory_of_a_copy_is_used_again() -> None:
    kept = copies.Copies()
    state = {"a": torch.ones(1000), "b": torch.zeros(1000), "c": torch.ones(10)}
    first = {tensor.data_ptr() for tensor in kept.of(state).values()}
    second = kept.of({"a": torch.full((1000,), 7.0), "b": torch.zeros(1000), "d": torch.ones(20)})
    assert {second["a"].data_ptr(), second["b"].data_ptr()} < first
    assert second["a"].data_ptr() != second["b"].data_ptr()
    assert second["a"].eq(7).all()
    assert second["d"].tolist() == [1] * 20


def test_other_tensors_than_plain_ones_are_copied_too() -> None:
    class Own(torch.Tensor):
        pass

    turned = torch.tensor([1 + 2j]).conj()
    state = {"own": torch.ones(2).as_subclass(Own), "conj": turned, "parameter": nn.Parameter(torch.ones(2))}
    made = copies.Copies().of(state)
    for name, tensor in state.items():
        assert torch.equal(made[name], tensor)
        assert made[name].data_ptr() != tensor.data_ptr()


def test_every_bit_is_copied_of_tensors_of_any_size() -> None:
    kept = copies.Copies()
    bits = torch.arange(-(2**31), 2**31, 5003, dtype=torch.int64).to(torch.int32)  # NaNs of all kinds among them
    state = {"large": bits.view(torch.float32), "odd": torch.arange(3 << 20).to(torch.uint8)[:-1].clone()}
    for _ in range(2):
        made = kept.of(state)
        assert torch.equal(made["large"].view(torch.int32), bits)
        assert torch.equal(made["odd"], state["odd"])
        bits.add_(1)
    del kept
    assert torch.equal(made["odd"], state["odd"]), "the memory lives as long as its tensor"


def test_where_there_is_no_memory_the_caller_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(copies.mmap, "mmap", refuse)
    with pytest.raises(MemoryError):
        copies.Copies().of({"large": torch.zeros(1 << 20)})


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_copy_takes_hardly_more_memory_than_the_state() -> None:
    """With huge pages for a whole mapping, 2.1 MiB took 4."""
    state = {str(number): torch.ones(2_200_000 // 4) for number in range(60)}
    before = resident_bytes()
    made = copies.Copies()
    held = made.of(state)
    assert resident_bytes() - before < 1.4 * sum(each.nbytes for each in state.values())
    assert torch.equal(held["59"], state["59"])
