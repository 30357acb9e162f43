"""mpi4py: one world of ranks that average their gradients. With an argument the last rank aborts with that code."""

import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
weight = 0.0
for _ in range(20):
    weight -= 0.1 * world.allreduce(2 * (weight - world.rank)) / world.size
# mpirun gives the ranks a terminal: what print() writes in two pieces is mixed with that of other ranks.
sys.stdout.write(f"rank {world.rank} of {world.size}: weight {weight:.9f}\n")
sys.stdout.flush()
world.Barrier()
if len(sys.argv) > 1 and world.rank == world.size - 1:
    world.Abort(int(sys.argv[1]))
world.Barrier()
