"""From libpackd's struct packd_batch to a Batch: views, no copies.

The C batch is released when the last array that lies in it is gone: every view's base, in the end, is one _Memory, which owns it. A
child made by fork leaves the parent's batches alone.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy

from packd import _lib
from packd.batch import COLUMN_DTYPES, NUMPY_DTYPES, Batch, Samples

# enum packd_dtype, from 1; NUMPY_DTYPES has the same order.
DTYPES = dict(enumerate(NUMPY_DTYPES, 1))
LABELS = {1: "unshifted", 2: "shifted"}
LOSS = {1: "token", 2: "sample"}
ATTENTION = {0: "unknown", 1: "varlen", 2: "fixed"}
_NUMBERS = ("step", "micro", "dp_rank", "rows", "width", "step_packs", "dp_size", "accum", "n_segments", "n_real_segments", "max_seqlen",
            "max_seqlen_real", "max_seqlen_padded", "fixed_segments", "pad_id", "config_digest", "plan_digest", "planner_version", "width_bound",
            "saved_positions")
_TOTALS = ("real_tokens", "tail_padding", "gap", "row_padding", "overlap_tokens", "samples", "segments", "attention_cost", "patches",
           "loss_tokens", "loss_weight")
_DELIVERY = ("incarnation", "generation", "verdict", "planned_unix_ms", "built_unix_ms", "validated_unix_ms", "sent_unix_ms", "builds", "first")
_TYPES = {name: numpy.dtype(name).str for name in NUMPY_DTYPES.values()}
_C_COLUMNS = {"loss_weight": "loss_weights"}


@lru_cache(256)
def _name(text: bytes) -> str:
    return text.decode(errors="replace")


class _Memory:
    """What `address` points to, as an array of bytes for NumPy, with whatever must live as long."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, address: int, count: int, dtype: str, owner: Any):
        self.__array_interface__ = {"data": (address, False), "shape": (count,), "typestr": _TYPES[dtype], "version": 3}
        self.owner = owner


def _array(ffi: Any, pointer: Any, count: int, dtype: str, owner: Any) -> numpy.ndarray:
    return numpy.asarray(_Memory(int(ffi.cast("uintptr_t", pointer)), count, dtype, owner))


def _owner(ffi: Any, lib: Any, batch: Any, hooks: Any) -> Any:
    """The batch with its release attached; hooks: the memory functions that the release may call."""
    forks = _lib.fork_count()

    def release(pointer):
        if _lib.fork_count() == forks:
            lib.packd_batch_release(pointer)
        return hooks

    return ffi.gc(batch, release)


def _totals(ffi: Any, totals: Any) -> dict[str, Any]:
    made: dict[str, Any] = {name: getattr(totals, name) for name in _TOTALS}
    made["loss"] = {_lib.text(ffi, entry.name): {"count": entry.count, "weight": entry.weight}
                    for entry in totals.loss[0:totals.loss_count]}
    return made


def _bytes_column(ffi: Any, cells: Any, count: int, _owner: Any) -> list[bytes]:
    return [bytes(ffi.buffer(cell.data, cell.size)) if cell.size else b"" for cell in cells[0:count]]


def _names_column(ffi: Any, indexes: Any, count: int, names: list[str], _owner: Any) -> list[str]:
    return [names[at] for at in indexes[0:count]] if indexes else [names[0] if names else "default"] * count


def _samples(ffi: Any, batch: Any) -> Samples:
    """Columns, each made when it is looked at; `batch` is what keeps their memory."""
    table, owner = batch.samples, batch
    streams = [_lib.text(ffi, name) for name in table.streams[0:table.stream_names]]
    sources = [_lib.text(ffi, name) for name in table.sources[0:table.source_names]]
    columns: dict[str, Any] = {}
    for name, names in (("stream", streams), ("source", sources)):
        columns[name] = partial(_names_column, ffi, getattr(table, name), table.count, names, owner)
    for name in ("key", "group"):
        if getattr(table, name):
            columns[name] = partial(_bytes_column, ffi, getattr(table, name), table.count, owner)
    for name, dtype in COLUMN_DTYPES.items():
        pointer = getattr(table, _C_COLUMNS.get(name, name))
        if pointer:
            columns[name] = partial(_array, ffi, pointer, table.count, dtype, owner)
    return Samples(table.count, columns)


def _header(ffi: Any, batch: Any) -> dict[str, Any]:
    header: dict[str, Any] = {name: getattr(batch, name) for name in _NUMBERS}
    header["feed"], header["job"] = _lib.text(ffi, batch.feed), _lib.text(ffi, batch.job)
    header["label_convention"] = LABELS.get(batch.labels, "unshifted")
    header["loss_weight_policy"] = LOSS.get(batch.loss_weight_policy, "token")
    header["attention_path"], header["attention_why"] = ATTENTION.get(batch.attention_path, "unknown"), _lib.text(ffi, batch.attention_why)
    header["packs"] = list(batch.packs[0:batch.rows])
    header["batch_totals"] = _totals(ffi, batch.batch_totals)
    header["step_totals"] = _totals(ffi, batch.step_totals)
    header["samples"] = _samples(ffi, batch)
    delivery = {name: getattr(batch.delivery, name) for name in _DELIVERY}
    delivery["backend"], delivery["device"] = _lib.text(ffi, batch.delivery.backend), _lib.text(ffi, batch.delivery.device)
    header["delivery"] = delivery
    return header


def batch_of(ffi: Any, lib: Any, pointer: Any, hooks: Any = None) -> Batch:
    """Takes over a batch that packd_job_next returned."""
    owner = _owner(ffi, lib, pointer, hooks)
    payload = _array(ffi, owner.payload, owner.payload_bytes, "uint8", owner)
    arrays, dtypes = {}, {}
    for array in owner.arrays[0:owner.array_count]:
        name, dtype = _name(ffi.string(array.name)), DTYPES[array.dtype]
        shape, offset = tuple(array.shape[0:array.ndim]), array.offset
        arrays[name] = payload[offset:offset + array.bytes].view(NUMPY_DTYPES[dtype]).reshape(shape)
        dtypes[name] = dtype
    return Batch(arrays, partial(_header, ffi, owner), dtypes=dtypes, payload=payload)
