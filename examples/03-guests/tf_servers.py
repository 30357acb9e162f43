"""TensorFlow's ParameterServerStrategy: the chief gives steps to the workers, the variables live on the servers.

oarlock run --framework tensorflow --chief --workers 2 --ps 1 --cpus 0.5 --tensorboard -- python tf_servers.py
"""

import json
import os

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
role, index = resolver.task_type, resolver.task_id
sizes = {name: len(tasks) for name, tasks in sorted(json.loads(os.environ["TF_CONFIG"])["cluster"].items())}
if role in ("worker", "ps"):
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=role, task_index=index, protocol="grpc", start=True)
    print(f"{role} {index} of {sizes}", flush=True)
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weights = tf.Variable(tf.zeros((8, 1)))


@tf.function
def step(seed: tf.Tensor) -> tf.Tensor:
    inputs = tf.random.stateless_normal((32, 8), seed=(seed, 1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(inputs, weights) - tf.reduce_sum(inputs, 1, keepdims=True)) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


losses = [coordinator.schedule(step, args=(tf.constant(number),)) for number in range(40)]
coordinator.join()
if "OARLOCK_TENSORBOARD" in os.environ:  # with `tensorboard: true`
    with tf.summary.create_file_writer(os.environ["OARLOCK_TENSORBOARD"]).as_default():
        for number, loss in enumerate(losses):
            tf.summary.scalar("loss", loss.fetch(), number)
before, after = losses[0].fetch(), losses[-1].fetch()
print(
    f"chief {index} of {sizes}: on {weights.device.split('task')[0]} the loss fell: {bool(after < before / 10)}",
    flush=True,
)
