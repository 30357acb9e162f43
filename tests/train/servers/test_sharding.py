"""The division of a model among parameter servers."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from oarlock.train.servers.model import sharding

VGG16 = [
    *((64, 3, 3, 3), (64,), (64, 64, 3, 3), (64,), (128, 64, 3, 3), (128,), (128, 128, 3, 3), (128,)),
    *((256, 128, 3, 3), (256,), *((256, 256, 3, 3), (256,)) * 2, (512, 256, 3, 3), (512,)),
    *(((512, 512, 3, 3), (512,)) * 5),
    *((4096, 25088), (4096,), (4096, 4096), (4096,), (1000, 4096), (1000,)),
]


def tensors(*shapes: tuple[int, ...], columns: int = 0) -> list[sharding.Tensor]:
    return [sharding.Tensor(f"p{index}", shape, "float32", 4, 0, columns) for index, shape in enumerate(shapes)]


@pytest.mark.parametrize("way", sharding.WAYS)
@pytest.mark.parametrize("servers", [1, 2, 3, 7, 40])
def test_every_element_is_on_one_server(way: str, servers: int) -> None:
    model = tensors((1000, 300), (7,), (), (130, 130), (64, 1024), (5, 5))
    seen = sorted(
        (part.tensor, part.start, part.stop) for parts in sharding.divide(model, servers, way) for part in parts
    )
    for index, tensor in enumerate(model):
        cuts = [(start, stop) for which, start, stop in seen if which == index]
        assert (cuts[0][0], cuts[-1][1]) == (0, tensor.size)
        assert all(before[1] == after[0] for before, after in pairwise(cuts))


def loads(way: str, servers: int) -> list[int]:
    return [sum(part.size * 4 for part in parts) for parts in sharding.divide(tensors(*VGG16), servers, way)]


def test_partitioning_balances_a_model_with_one_large_layer() -> None:
    """VGG16's first dense layer holds 74 % of the parameters: whole, it makes one of four servers the bottleneck."""
    assert sum(loads("partition", 4)) == sum(math.prod(shape) for shape in VGG16) * 4
    assert max(loads("partition", 4)) / (sum(loads("partition", 4)) / 4) <= 1.02
    assert max(loads("greedy", 4)) / (sum(loads("greedy", 4)) / 4) > 2.9
    assert max(loads("round_robin", 4)) > max(loads("greedy", 4))


def test_a_row_is_never_cut() -> None:
    (model,) = [tensors((5000, 48), columns=48)]
    parts = [part for parts in sharding.divide(model, 3, "partition") for part in parts]
    assert len(parts) == 3
    assert all(part.start % 48 == 0 and part.start % sharding.ALIGNED == 0 for part in parts)


def test_parts_of_one_type_lie_side_by_side() -> None:
    model = [
        sharding.Tensor("a", (10,), "float32", 4, 0),
        sharding.Tensor("b", (10,), "float64", 8, 0),
        sharding.Tensor("c", (10,), "float32", 4, 0),
    ]
    assert [part.tensor for part in sharding.divide(model, 1, "greedy")[0]] == [0, 2, 1]


@pytest.mark.parametrize(
    ("ranks", "servers", "firsts"),
    [(2, 4, [0, 2]), (4, 2, [0, 0, 1, 1]), (3, 3, [0, 1, 2]), (1, 5, [0]), (2, 1, [0, 0]), (2, 0, [0, 0])],
)
def test_ranks_begin_at_different_servers(ranks: int, servers: int, firsts: list[int]) -> None:
    assert [sharding.first_server(rank, ranks, servers) for rank in range(ranks)] == firsts
