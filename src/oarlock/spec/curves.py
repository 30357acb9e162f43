"""The speed of a job at each size: measured from the reports of its processes, fitted in `scheduler/speed/`.

The model of a synchronous step is the one of Pollux (OSDI '21, section 3.2): on `devices` devices of `nodes` nodes,
each taking `m` examples at once and adding up `s` such (accumulation),

    T_grad = compute_s + (compute_per_example_s + data_per_device_s * (devices - 1)) * m
    T_sync = 0 (one device), near_s + near_per_device_s * (devices - 2) (one node), or far_... (several)
    T_step = (s - 1) * T_grad + (T_grad ** overlap + T_sync ** overlap) ** (1 / overlap)

and its statistical efficiency at batch size M against the initial one M0 is (noise + M0) / (noise + M), where `noise`
is the gradient noise scale in examples (McCandlish et al. 2018, equation 2.8). The term of data is ours: devices that
read from one source wait the longer for their examples, the more they are.
"""

from __future__ import annotations

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of `count` reports, measured at one shape. Seconds."""

    nodes: int
    devices: int
    local: int  # examples that a process takes at once; 0: it did not say
    step_s: float  # of the last micro-step with its exchange of gradients
    sync_s: float  # of that, waiting for the exchange
    data_s: float = 0.0  # of that, waiting for the next batch
    servers: int = 0  # parameter servers
    gpu_type: str = ""  # of its devices; empty: none, or not told
    beside: str = ""  # the job that ran on the same device, of which each asks for the whole
    count: int = 1


class Allreduce(msgspec.Struct, frozen=True, kw_only=True, tag="allreduce"):
    """The model above. `noise` in examples; None: unknown, and the batch size stays as it is.

    `seen` is the largest number of devices in any sample: the model says nothing beyond twice that number.
    """

    compute_s: float
    compute_per_example_s: float
    data_per_device_s: float = 0.0
    near_s: float = 0.0
    near_per_device_s: float = 0.0
    far_s: float = 0.0
    far_per_device_s: float = 0.0
    overlap: float = 1.0
    noise: float | None = None
    seen: int = 1


class Servers(msgspec.Struct, frozen=True, kw_only=True, tag="servers"):
    """Parameter servers (Optimus, EuroSys '18, section 3.2), of w workers and p servers.

    Steps per second: w / (t0 + t1 w/p + t2 w + t3 p) asynchronously, 1 / (t0 M/w + t1 + t2 w/p + t3 w + t4 p)
    synchronously with the batch size M. `times` are those t, in seconds.
    """

    times: tuple[float, ...]
    synchronous: bool = False
    batch: float = 0.0


class Table(msgspec.Struct, frozen=True, kw_only=True, tag="table"):
    """Measured or told, not fitted: progress per second with 1, 2, 3... devices, as compactly placed as they can be."""

    rates: tuple[float, ...]


Model = Allreduce | Servers | Table


class Convergence(msgspec.Struct, frozen=True, kw_only=True):
    """loss(k) = 1 / (b0 k + b1) + b2 at step k (Optimus, section 3.1)."""

    b0: float
    b1: float
    b2: float


class OnType(msgspec.Struct, frozen=True, kw_only=True):
    """The model of a job on one type of GPU.

    `guessed` is 0 where the job was measured on the type. Elsewhere the model is estimated, and `guessed` is the
    standard deviation of the logarithm of its speed: 0.3 says that the true speed is within 30 % two times of three.
    """

    gpu_type: str
    model: Allreduce
    guessed: float = 0.0


class Batch(msgspec.Struct, frozen=True):
    """Examples that each process takes at once, and how many such it adds up before the gang exchanges gradients."""

    local: int
    accumulate: int = 1


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The measured speed of one job.

    `model` is of the type of GPU on which the job was measured last. `types` has a model for each type on which it was
    measured; it is empty where no type was reported. `left` is the progress that remains, in the model's unit: examples
    at the initial batch size's efficiency (`Allreduce`), steps (`Servers`), the unit of `Table`. None: unknown.
    """

    model: Model
    left: float | None = None
    convergence: Convergence | None = None
    samples: tuple[Sample, ...] = ()
    types: tuple[OnType, ...] = ()
