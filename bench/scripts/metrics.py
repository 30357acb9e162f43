"""Steps of about a millisecond, that log 20 values each or none.

Arguments: steps, whether to log (0 or 1), a file for the seconds it took.
"""

import pathlib
import random
import sys
import time

import torch

from oarlock import train

steps, log, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
world = train.init()
weights = torch.randn(300, 300)
walk = {f"value_{number}": random.random() for number in range(20)}
with train.Session(total_steps=steps) as session:
    began = time.perf_counter()
    for _ in session.steps():
        weights = torch.tanh(weights @ weights / 300)
        walk = {name: value + random.gauss(0, 0.01) for name, value in walk.items()}
        if log:
            session.log(**walk)
    took = time.perf_counter() - began
pathlib.Path(f"{out}.{train.rank()}").write_text(str(took))
