"""mpi4py: one world of ranks that average their gradients. With an argument the last rank aborts with that code.

oarlock run --framework mpi --workers 2 --tensorboard -- mpirun -n 2 python with_mpi.py
"""

import os
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
writer = None
if world.rank == 0 and "OARLOCK_TENSORBOARD" in os.environ:  # with `tensorboard: true`
    from tensorboard.summary import Writer

    writer = Writer(os.environ["OARLOCK_TENSORBOARD"])
weight = 0.0
for step in range(20):
    weight -= 0.1 * world.allreduce(2 * (weight - world.rank)) / world.size
    if writer is not None:
        writer.add_scalar("weight", weight, step)
if writer is not None:
    writer.close()
# mpirun gives the ranks a terminal: what print() writes in two pieces is mixed with that of other ranks.
sys.stdout.write(f"rank {world.rank} of {world.size}: weight {weight:.9f}\n")
sys.stdout.flush()
world.Barrier()
if len(sys.argv) > 1 and world.rank == world.size - 1:
    world.Abort(int(sys.argv[1]))
world.Barrier()
