"""Add the ranks of all processes by MPI itself, without a Python package."""

import ctypes
import os

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)


def handle(name: str) -> ctypes.c_void_p:
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))


world = handle("ompi_mpi_comm_world")
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Init(None, None)
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Comm_size(world, ctypes.byref(size))
one = ctypes.c_int(rank.value + 1)
mpi.MPI_Allreduce(
    ctypes.byref(one),
    ctypes.byref(total),
    1,
    handle("ompi_mpi_int"),
    handle("ompi_mpi_op_sum"),
    world,
)
where = f"{os.environ['OARLOCK_ROLE']} {os.environ['OARLOCK_INDEX']}"
print(f"rank {rank.value} of {size.value} in {where} has the sum {total.value}", flush=True)
mpi.MPI_Finalize()
