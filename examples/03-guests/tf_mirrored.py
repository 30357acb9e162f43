"""TensorFlow's MultiWorkerMirroredStrategy with a Keras model: every worker has a part of each batch.

oarlock run --framework tensorflow --workers 2 --tensorboard -- python tf_mirrored.py
"""

import json
import os

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # reads TF_CONFIG, and meets the others
task = json.loads(os.environ["TF_CONFIG"])["task"]
rank, world = task["index"], strategy.num_replicas_in_sync

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1, kernel_initializer="zeros")])

inputs = tf.random.stateless_normal((32, 8), seed=(rank, 1))
targets = tf.reduce_sum(inputs, 1, keepdims=True)


@tf.function
def step() -> tf.Tensor:
    def of_this_worker() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(of_this_worker), axis=None)


logs = os.environ.get("OARLOCK_TENSORBOARD") if rank == 0 else None  # with `tensorboard: true`
writer = tf.summary.create_file_writer(logs) if logs else tf.summary.create_noop_writer()
loss = tf.constant(0.0)
for number in range(10):
    loss = step()
    with writer.as_default(number):
        tf.summary.scalar("loss", loss)
writer.close()
print(f"rank {rank} of {world}: loss {loss.numpy():.5f}", flush=True)
