"""A progress bar that stops in the middle until the file exists that its argument names."""

import pathlib
import sys
import time

import tqdm

go = pathlib.Path(sys.argv[1])
for step in tqdm.tqdm(range(100), mininterval=0, ascii=True):
    for _ in range(6000 if step == 50 else 0):
        if not go.exists():
            time.sleep(0.05)
print("all 100 steps", flush=True)
