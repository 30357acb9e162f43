"""200 MB of numbered lines."""

import sys

for number in range(200_000):
    block = (b"%012d the loss is 0.693147 and so on, line %d\n" % (number, line) for line in range(20))
    sys.stdout.buffer.write(b"".join(block))
sys.stdout.buffer.flush()
