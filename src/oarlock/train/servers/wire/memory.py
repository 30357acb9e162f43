"""Tensors as memory that a transport reads and writes in place. Without NumPy, which the user's image may lack."""

from __future__ import annotations

import ctypes

import torch

TYPES = {
    str(each).split(".")[1]: each
    for each in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
}
"""The types that travel, by name."""


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).split(".")[1]


def view(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU. The tensor must live as long as the view is used."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("only contiguous tensors on the CPU have a view")
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")
