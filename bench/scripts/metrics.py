"""Steps of about a millisecond that log 20 values each, or none; arguments: steps, values, a file for the seconds it
took.
"""

import pathlib
import random
import sys
import time

import torch

from oarlock import train

steps, values, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
world = train.init()
weights = torch.randn(220, 220)
walk = [random.random() for _ in range(values)]
with train.Session(total_steps=steps) as session:
    began = time.perf_counter()
    for _ in session.steps():
        weights = torch.tanh(weights @ weights / 220)
        if values:
            walk = [value + random.gauss(0, 0.01) for value in walk]
            session.log(**{f"value_{place}": value for place, value in enumerate(walk)})
        else:
            walk = [value + random.gauss(0, 0.01) for value in [0.0] * 20]
    took = time.perf_counter() - began
pathlib.Path(f"{out}.{train.rank()}").write_text(str(took))
