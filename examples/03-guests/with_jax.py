"""`jax.distributed` over its processes, with the gradients gathered from all of them.

oarlock run --framework jax --workers 2 --tensorboard -- python with_jax.py
"""

import os

import jax

# With `tensorboard: true`. It is made before the processes meet: collectives of JAX do not wait long for a late one.
writer = None
if os.environ["JAX_PROCESS_ID"] == "0" and "OARLOCK_TENSORBOARD" in os.environ:
    from tensorboard.summary import Writer

    writer = Writer(os.environ["OARLOCK_TENSORBOARD"])

jax.distributed.initialize(
    coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
    process_id=int(os.environ["JAX_PROCESS_ID"]),
)

from jax import numpy as jnp  # noqa: E402  (only now are the devices of all processes known)
from jax.experimental import multihost_utils  # noqa: E402  (as above)

rank, world = jax.process_index(), jax.process_count()
inputs = jax.random.normal(jax.random.key(rank), (32, 8))
weights = jnp.zeros(8)


def loss_of(weights: jax.Array) -> jax.Array:
    return jnp.mean((inputs @ weights - inputs.sum(1)) ** 2)


loss = jnp.zeros(())
for step in range(10):
    loss, gradient = jax.value_and_grad(loss_of)(weights)
    if writer is not None:
        writer.add_scalar("loss", float(loss), step)
    weights = weights - 0.1 * multihost_utils.process_allgather(gradient).mean(0)
if writer is not None:
    writer.close()
print(f"rank {rank} of {world}, {jax.device_count()} devices: loss {loss:.6f}", flush=True)
jax.distributed.shutdown()
