"""A job of steps that wait, as for a GPU: it takes the same time wherever the machine has a moment for it."""

import sys
import time

STEP_S = 0.5

if __name__ == "__main__":
    began = time.monotonic()
    for step in range(int(sys.argv[1])):
        time.sleep(STEP_S)
        print("step", step, flush=True)
    print("worked", time.monotonic() - began, flush=True)
