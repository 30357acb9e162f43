"""Worker processes by fork and by spawn; then it ends, and leaves three processes behind that do not in ten minutes."""

import multiprocessing
import os
import signal
import subprocess
import sys


def square(number: int) -> int:
    return number * number


def leave() -> None:
    """One process in this session, one in a session of its own that holds stdout, and a program."""
    for alone in (False, True):
        if os.fork() == 0:
            if alone:
                os.setsid()
            signal.alarm(600)
            signal.pause()
    subprocess.Popen(["sleep", "600"], start_new_session=True)


if __name__ == "__main__":
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, sum(pool.map(square, range(100))), flush=True)
    leave()
    sys.stdout.flush()
    os._exit(0)  # past multiprocessing, which would wait for children that it knows
