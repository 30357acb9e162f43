"""A script that is fed through stdin: it adds the numbers that come, one in a line."""

import sys

print("sum", sum(int(line) for line in sys.stdin), flush=True)
