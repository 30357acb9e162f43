"""The compression's arithmetic gives the same on a GPU as on a processor."""

from __future__ import annotations

import pytest
import torch

from oarlock.train.compression import dgc, runlengths, selection


@pytest.mark.parametrize("size", [100, 8192, 8193, 100_000, 1_000_003])
@pytest.mark.parametrize("bad", [False, True])
def test_the_selection_is_that_of_a_processor(size: int, bad: bool) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(3))
    if bad:
        tensor[5] = torch.nan
    count = max(1, size // 1000)
    found = []
    for one in (tensor, tensor.cuda()):
        peaks = selection.Peaks(one)
        peaks.note(lambda number: None)
        found.append(selection.largest(one, peaks, count, 7).cpu())
    assert torch.equal(*found)
    assert not bad or 5 in found[0].tolist()


@pytest.mark.parametrize("positions", [[], [0], [65534], [65535, 65536], [10**7, 10**7 + 1, 3 * 10**9]])
def test_run_lengths_give_back_the_positions(positions: list[int]) -> None:
    encoded = runlengths.encode(torch.tensor(positions, dtype=torch.int64, device="cuda"))
    assert torch.equal(encoded.cpu(), runlengths.encode(torch.tensor(positions, dtype=torch.int64)))
    assert runlengths.decode(encoded).tolist() == positions


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_the_velocity_in_one_pass(size: int) -> None:
    v, g, u = (torch.randn(size, device="cuda") for _ in range(3))
    velocity = 0.9 * u + 0.5 * g
    expected = v + velocity
    dgc._add_velocity(v, g, u, 0.9, 0.5)
    torch.testing.assert_close(u, velocity)
    torch.testing.assert_close(v, expected)
