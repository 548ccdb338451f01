"""MaxText, and whatever else reads Grain's or T5's packed keys. NumPy.

    inputs, targets                              int32 [R, W]   targets shifted, 0 without loss
    inputs_position, targets_position            int32 [R, W]   restart at 0 in every segment
    inputs_segmentation, targets_segmentation    int32 [R, W]   1, 2, ... in a row; 0 is padding. targets_segmentation is 0 wherever
                                                                there is no loss: it is the loss mask

A context-parallel share cuts every row: jax shards the axis, and the order is the load-balanced one.
"""

from __future__ import annotations

from typing import Any

import numpy

from packd.adapters.common import IGNORE, Adapter, View

KEYS = ("inputs", "targets", "inputs_position", "targets_position", "inputs_segmentation", "targets_segmentation")


def build(view: View) -> dict[str, Any]:
    """See the module."""
    labels, segments = view.labels(), view["segment_ids"]
    none = labels == IGNORE
    return {
        "inputs": view["tokens"],
        "targets": numpy.where(none, numpy.int32(0), labels),
        "inputs_position": view["positions"],
        "targets_position": view["positions"],
        "inputs_segmentation": segments,
        "targets_segmentation": numpy.where(none, numpy.int32(0), segments),
    }


ADAPTER = Adapter(name="maxtext", build=build, labels="shifted", keys=KEYS, framework="numpy", layout="[R, W]", cp="row",
                  token_axes=dict.fromkeys(KEYS, 1), doc="MaxText, Grain and T5 keys")
