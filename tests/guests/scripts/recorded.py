"""torchrun's `@record`: the error of the rank that failed is what its launcher tells."""

import os

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "1":
        raise ValueError("shard 7 is empty")
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main()
