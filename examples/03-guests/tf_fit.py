"""Keras' compile and fit under TensorFlow's MultiWorkerMirroredStrategy: every worker has a part of each batch.

oarlock run --framework tensorflow --workers 2 --tensorboard -- python tf_fit.py

Keras 3 does not support this strategy (https://github.com/keras-team/keras/issues/20585): two parts of its fit fail
under it, with every launcher. `Model` goes without the one and around the other. Tried with Keras 3.15.
"""

import json
import os

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # reads TF_CONFIG, and meets the others
rank, world = json.loads(os.environ["TF_CONFIG"])["task"]["index"], strategy.num_replicas_in_sync


class Model(tf.keras.Model):
    def _maybe_symbolic_build(self, *args, **kwargs) -> None:
        """Build nothing from a first batch, which fit cannot bring together: all is built below."""

    def train_step(self, data) -> dict[str, tf.Tensor]:
        """Return each metric as a vector of one element: fit takes the mean of the workers along a first dimension."""
        return {name: tf.reshape(value, [1]) for name, value in super().train_step(data).items()}


with strategy.scope():
    features = tf.keras.Input((8,))
    model = Model(features, tf.keras.layers.Dense(1, kernel_initializer="zeros")(features))
    model.compile(optimizer=tf.keras.optimizers.Adam(0.1), loss="mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)

inputs = tf.random.stateless_normal((256, 8), seed=(0, 1))
examples = tf.data.Dataset.from_tensor_slices((inputs, tf.reduce_sum(inputs, 1, keepdims=True)))
logs = os.environ.get("OARLOCK_TENSORBOARD") if rank == 0 else None  # with `tensorboard: true`
callbacks = [tf.keras.callbacks.TensorBoard(logs, write_graph=False)] if logs else []
history = model.fit(examples.batch(32), epochs=10, shuffle=False, verbose=0, callbacks=callbacks)
print(f"rank {rank} of {world}: loss {history.history['loss'][-1]:.5f}", flush=True)
