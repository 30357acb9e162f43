"""PowerSGD (Vogels et al., NeurIPS 2019, arXiv 1905.13727): matrices travel as two thin factors.

For each matrix M, the rank's gradient and the error that it kept, with the factor Q of the step before:

    P <- mean over the ranks of M Q, made orthonormal
    Q <- M^T P                                     this rank's own
    error <- M - P Q^T                             what the factors do not say is sent in later steps
    gradient <- P (mean over the ranks of Q)^T

A tensor of more dimensions is the matrix of its first dimension by the others. Tensors of one dimension, and matrices
that are hardly larger than their factors, travel densely.

Where a rank's gradient is not finite, those of all ranks are not. Nothing of them is kept, and what was kept back is
dropped: a GradScaler passes over such a step, and the later ones must be whole.

Each rank makes P orthonormal by itself, as torch's own hook does, and multiplies the factors by itself. Processors of
one kind give all ranks the same bits. Those of different kinds may round otherwise, and then the replicas drift apart
in the last bits, until they begin again from a checkpoint. A third exchange in a row, of the orthonormal P, would not
end that: the product is still each rank's own.

The factors of all matrices go in two sums, one after the other. Hooks that start sums of their own for each bucket,
from callbacks, race with each other: on gloo the ranks then sum different buckets.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn, optim

from oarlock.train import errors
from oarlock.train.strategies.wholegradient import WholeGradient, gradient


@dataclass(frozen=True)
class PowerSGD:
    """The settings of PowerSGD: `rank` is the number of columns of the factors."""

    rank: int = 2

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise errors.StateError(f"rank={self.rank} is below 1: the authors use 1, 2 or 4")


class LowRank(WholeGradient):
    """Allreduce of gradients of low rank, for any optimizer."""

    def __init__(self, settings: PowerSGD | None = None, *, unused_parameters: bool = False) -> None:
        super().__init__(unused_parameters=unused_parameters)
        self.settings = settings or PowerSGD()
        self._matrices: list[_Matrix] = []
        self._dense: list[nn.Parameter] = []

    def prepare(self, optimizer: optim.Optimizer | None) -> None:
        generator = torch.Generator().manual_seed(0)  # the same factors on every rank
        for name, parameter in self.named:
            rows = parameter.shape[0] if parameter.dim() > 1 else 1
            columns = parameter.numel() // max(1, rows)
            if 0 < 2 * self.settings.rank * (rows + columns) <= rows * columns:
                self._matrices.append(_Matrix(name, parameter, self.settings.rank, generator))
            else:
                self._dense.append(parameter)

    def state_dict(self) -> dict[str, Any]:
        if not self._matrices:
            return {}
        return {
            "error": {matrix.name: matrix.error for matrix in self._matrices},
            "factor": {matrix.name: matrix.right for matrix in self._matrices},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self.knows(state, "factor"):
            return
        for matrix in self._matrices:
            matrix.error.copy_(state["error"][matrix.name])
            matrix.right.copy_(state["factor"][matrix.name])

    def inherit(self, chiefs: dict[str, Any], states: Iterable[dict[str, Any]], ranks: int) -> bool:
        """Go on with the factors, and hand the errors of the former ranks over: their mean stays the same."""
        if not self.knows(chiefs, "factor"):
            return False
        mine: dict[str, torch.Tensor] = {}
        for state in states:
            for name, error in state["error"].items():
                mine[name] = mine[name] + error if name in mine else error.clone()
        share = self.world.world_size / ranks
        for matrix in self._matrices:
            matrix.right.copy_(chiefs["factor"][matrix.name])
            if matrix.name in mine:
                matrix.error.copy_(mine[matrix.name] * share)
        if self.world.world_size == 1 and not self._matrices:
            for name, parameter in self.named:
                if name in mine:
                    _add_once(parameter, mine[name] * share)
        return True

    def flush_all(self) -> None:
        """Give every rank the mean of the errors, so that their mean is the same with any ranks that keep it."""
        for matrix, mean in zip(self._matrices, self._mean([matrix.error for matrix in self._matrices])):
            matrix.error.copy_(mean)

    def shared(self) -> dict[str, Any]:
        told: dict[str, Any] = {"factor": {matrix.name: matrix.right for matrix in self._matrices}, "even": self.even}
        return {**told, "error": {matrix.name: matrix.error for matrix in self._matrices}} if self.even else told

    def catch_up(self, shared: dict[str, Any], *, made: bool) -> None:
        super().catch_up(shared, made=made)
        for matrix in self._matrices:
            matrix.right.copy_(shared["factor"][matrix.name])
            if self.even:
                matrix.error.copy_(shared["error"][matrix.name])

    def exchange(self) -> None:
        matrices = [matrix for matrix in self._matrices if id(matrix.parameter) not in self.unreached]
        if self.world.world_size == 1:
            for matrix in matrices:
                matrix.send_all()
            return
        dense = [gradient(parameter) for parameter in self._dense if id(parameter) not in self.unreached]
        lefts = [matrix.project() for matrix in matrices]
        means = self._mean([*dense, *lefts])
        for one, mean in zip(dense, means):
            one.copy_(mean)
        rights = [matrix.back(left) for matrix, left in zip(matrices, means[len(dense) :])]
        for matrix, ours in zip(matrices, rights):
            self.then(functools.partial(matrix.keep_rest, ours))
        for matrix, right in zip(matrices, self._mean(rights)):
            if bool(torch.isfinite(right).all()):
                matrix.restore(right)
            else:
                matrix.pass_on(right)
                self.then(matrix.error.zero_)

    def _mean(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the means over the ranks, of one exchange for each type."""
        means: list[torch.Tensor] = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = torch.cat([tensors[place].reshape(-1) for place in places]).div_(self.world.world_size)
            self.wait_for(self.start_sum(flat))
            for place, values in zip(places, torch.split(flat, [tensors[place].numel() for place in places])):
                means[place] = values.view_as(tensors[place])
        return means


def _add_once(parameter: nn.Parameter, error: torch.Tensor) -> None:
    """Add the error to the parameter's next gradient."""

    def add(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad += error.to(parameter.grad).view_as(parameter)
        handle.remove()

    handle = parameter.register_post_accumulate_grad_hook(add)


class _Matrix:
    """A compressed tensor: this rank's `error`, and the factors `left` (rows x rank) and `right` (columns x rank)."""

    def __init__(self, name: str, parameter: nn.Parameter, rank: int, generator: torch.Generator) -> None:
        self.name, self.parameter = name, parameter
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        rows, columns = parameter.shape[0], parameter.numel() // parameter.shape[0]
        self.error = torch.zeros(rows, columns, dtype=dtype, device=parameter.device)
        self.left = self.error.new_zeros(rows, rank)
        self.right = torch.randn(columns, rank, generator=generator, dtype=dtype, device="cpu").to(parameter.device)

    def project(self) -> torch.Tensor:
        """Take up the gradient, and return this rank's part of the left factor."""
        self.error += gradient(self.parameter).view_as(self.error)
        return self.error @ self.right

    def back(self, left: torch.Tensor) -> torch.Tensor:
        """Take the left factor of all ranks, and return this rank's part of the right factor."""
        self.left = torch.linalg.qr(left).Q
        return self.error.mH @ self.left

    def keep_rest(self, right: torch.Tensor) -> None:
        """Keep as the error what this rank's factors do not say."""
        self.error.addmm_(self.left, right.mH, alpha=-1)

    def send_all(self) -> None:
        """Add all that was kept back to the gradient of a process that is alone."""
        gradient(self.parameter).view_as(self.error).add_(self.error)
        self.error.zero_()

    def pass_on(self, right: torch.Tensor) -> None:
        """Give the script a gradient that is not finite, and keep nothing of it: a GradScaler passes over the step."""
        gradient(self.parameter).copy_((self.left @ right.mH).view_as(self.parameter))

    def restore(self, right: torch.Tensor) -> None:
        self.right.copy_(right)
        gradient(self.parameter).copy_((self.left @ self.right.mH).view_as(self.parameter))
