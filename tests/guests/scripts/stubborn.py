"""A script that ignores SIGTERM, and writes into the file that its argument names when it got one."""

import pathlib
import signal
import sys
import time

told = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: told.write_text("SIGTERM\n"))
print("ready", flush=True)
for _ in range(6000):
    time.sleep(0.1)
