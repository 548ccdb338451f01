"""Trains a byte model without torch: NumPy, or JAX where it is installed. A softmax over the next byte, given this one and its place.

    train_arrays.py --server 127.0.0.1:7070 [--backend numpy|jax]

With JAX every process opens the job with its own dp_rank, gets its own rows as NumPy, and jax.make_array_from_process_local_data makes the
global array of them: shard [rows, width] over the data axis of the mesh. Shapes must not change from step to step (or jit compiles
again), so only arrays of a fixed shape are used. The feed should serve `labels: shifted`.

Prints one JSON line a step: step, loss, denominator.
"""

from __future__ import annotations

import argparse
import json

import numpy

import packd
from packd import adapters

VOCABULARY, PLACES = 256, 16
NAMES = ("tokens", "positions", "labels", "loss_weight")


def loss_and_gradient(table: numpy.ndarray, arrays: dict[str, numpy.ndarray], denominator: float) -> tuple[float, numpy.ndarray]:
    """Weighted mean over the step of the cross entropy; table [VOCABULARY + PLACES, VOCABULARY] gives the logits."""
    rows = arrays["tokens"].reshape(-1), VOCABULARY + numpy.minimum(arrays["positions"].reshape(-1), PLACES - 1)
    labels, weight = arrays["labels"].reshape(-1), arrays["loss_weight"].reshape(-1) / denominator
    logits = table[rows[0]] + table[rows[1]]
    logits -= logits.max(1, keepdims=True)
    probability = numpy.exp(logits)
    probability /= probability.sum(1, keepdims=True)
    at = numpy.arange(len(labels)), numpy.maximum(labels, 0)
    loss = -(numpy.log(probability[at]) * weight).sum()
    probability[at] -= 1
    probability *= weight[:, None]
    gradient = numpy.zeros_like(table)
    for row in rows:
        numpy.add.at(gradient, row, probability)
    return float(loss), gradient


def jax_function():
    """The same as loss_and_gradient, jitted, over arrays sharded by row."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    mesh = Mesh(numpy.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))

    def mean(table, arrays, denominator):
        place = VOCABULARY + jnp.minimum(arrays["positions"], PLACES - 1)
        logs = jax.nn.log_softmax(table[arrays["tokens"]] + table[place])
        picked = jnp.take_along_axis(logs, jnp.maximum(arrays["labels"], 0)[..., None], -1)[..., 0]
        return -(picked * arrays["loss_weight"]).sum() / denominator

    compiled = jax.jit(jax.value_and_grad(mean))

    def call(table, arrays, denominator):
        shared = {name: jax.make_array_from_process_local_data(sharding, array) for name, array in arrays.items()}
        loss, gradient = compiled(jnp.asarray(table), shared, denominator)
        return float(loss), numpy.asarray(gradient)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default=None)
    parser.add_argument("--feed", default="default")
    parser.add_argument("--job", default="byte-model")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--backend", choices=("numpy", "jax"), default="numpy")
    options = parser.parse_args()
    function = loss_and_gradient if options.backend == "numpy" else jax_function()
    adapter = adapters.get("jax")
    table = numpy.zeros((VOCABULARY + PLACES, VOCABULARY), "float32")
    with packd.Job(options.server, feed=options.feed, job=options.job, rows=options.rows, labels="shifted", steps=options.steps) as job:
        for batch in job:
            loss, gradient = function(table, adapter(batch, names=NAMES), batch.loss_denominator)
            table -= 20 * gradient
            print(json.dumps({"step": batch.step, "loss": loss, "denominator": batch.loss_denominator}), flush=True)


if __name__ == "__main__":
    main()
