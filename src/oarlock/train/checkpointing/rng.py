"""The states of this process's random generators: Python's, NumPy's if it is imported, torch's on the CPU and all GPUs.

The states consist of plain values and tensors, so that they can be loaded without unpickling code.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """Return all present states. After `reinstate` of them the generators repeat the numbers drawn since."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = (name, [int(key) for key in keys], *rest)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def reinstate(states: dict[str, Any]) -> None:
    """Restore captured states. A state whose library or device is missing is skipped."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available() and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all(states["cuda"])
