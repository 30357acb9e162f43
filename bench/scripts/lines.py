"""Print many numbered lines as fast as Python can; arguments: how many, and a file for the seconds it took."""

import pathlib
import sys
import time

began = time.perf_counter()
for number in range(int(sys.argv[1])):
    print("line", number, "of a task that has much to say")
sys.stdout.flush()
pathlib.Path(sys.argv[2]).write_text(str(time.perf_counter() - began))
