"""What all adapters share: the Adapter itself, labels in the convention asked for, tensors over the batch's memory.

An adapter module holds one `build(view, **options)` that returns the consumer's dict of NumPy arrays and plain values, and one
ADAPTER that names its keys. Everything else is here: the convention of the labels, weights that the consumer cannot carry, extra
arrays, NumPy to torch, and the share of a context-parallel rank.

Memory: int32 and float32 arrays are views of the batch, in torch too; int64 ones (what torch embeddings and losses of older
versions want) are converted, which copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy

from packd.adapters import zigzag
from packd.batch import Batch, Named
from packd.errors import InvalidArgument, Mismatch

IGNORE = -100  # a label without loss


def plain(batch: Any) -> Batch:
    """The packd.Batch in whatever holds one (packd.torch.TensorBatch), over the same memory where that is the CPU's. TypeError: nothing of that."""
    if isinstance(batch, Batch):
        return batch
    if not isinstance(batch, Named):
        raise TypeError(f"batch is {type(batch).__name__}: expected a packd.Batch or a packd.torch.TensorBatch")
    return batch.numpy()


class View:
    """A batch as adapters read it: labels and weights in one convention, weights folded away where there is no key for them."""

    def __init__(self, batch: Batch, labels: str | None, carries_weights: bool):
        self.batch = batch = plain(batch)
        self.header = batch.header
        self.rows, self.width = batch["tokens"].shape
        self.total = self.rows * self.width
        self.labels_as = labels or self.header["label_convention"]
        self.carries_weights = carries_weights

    def __getitem__(self, name: str) -> numpy.ndarray:
        """The batch's array; labels and loss_weight in the adapter's convention."""
        if name in ("labels", "loss_weight"):
            return self.shifted(name)
        return self.batch[name]

    def shifted(self, name: str) -> numpy.ndarray:
        """labels or loss_weight [R, W] in the convention `labels_as`.

        One step along the flattened batch is exact: an unshifted segment begins, and a shifted one ends, with "no loss", and so
        does whatever lies between segments. Mismatch where the batch breaks that rule.
        """
        array = self.batch[name]
        if self.header["label_convention"] == self.labels_as:
            return array
        none = IGNORE if name == "labels" else 0
        flat, moved = array.reshape(-1), numpy.full(self.total, none, array.dtype)
        starts = self.batch["cu_seqlens"][:-1]
        starts = starts[starts < self.total]
        edge = flat[starts] if self.labels_as == "shifted" else flat[starts - 1]
        if (edge != none).any():
            at = int(starts[numpy.argmax(edge != none)])
            raise Mismatch(f"{name} crosses the segment boundary at {at}: it is not {self.header['label_convention']}, as the header "
                           "says", reason="LABELS_CROSS_BOUNDARY")
        if self.labels_as == "shifted":
            moved[:-1] = flat[1:]
        else:
            moved[1:] = flat[:-1]
        return moved.reshape(array.shape)

    def labels(self) -> numpy.ndarray:
        """Labels [R, W]; where no key carries weights, a target of weight 0 becomes -100."""
        labels = self["labels"]
        if not self.carries_weights:
            silent = (self["loss_weight"] == 0) & (labels != IGNORE)
            if silent.any():
                labels = numpy.where(silent, numpy.int32(IGNORE), labels)
        return labels

    def slots(self) -> numpy.ndarray:
        """int32 [T]: number of the cu_seqlens segment of each position, padding segments included."""
        return numpy.repeat(numpy.arange(len(self.batch["cu_seqlens"]) - 1, dtype="int32"), numpy.diff(self.batch["cu_seqlens"]))

    def row_slots(self) -> numpy.ndarray:
        """int32 [R, W]: as slots, counted from 0 in each row."""
        slots = self.slots().reshape(self.rows, self.width)
        return slots - slots[:, :1]

    def flat(self, array: numpy.ndarray) -> numpy.ndarray:
        """[R, W, ...] as [1, T, ...]; M-RoPE positions [3, R, W] as [3, 1, T]."""
        if array.shape[:2] == (self.rows, self.width):
            return array.reshape(1, self.total, *array.shape[2:])
        return array.reshape(len(array), 1, self.total)


@dataclass(frozen=True)
class Adapter:
    """Turns a Batch into what one kind of consumer takes. Call it: adapter(batch) -> dict (torchtitan: a pair).

    name; labels: the convention its consumer expects, None where it takes what the feed serves or none; keys: what it returns;
    weights: whether it needs no loss_weight or has a key for it; framework: "torch" or "numpy", what arrays come as; token_axes:
    keys with one entry a position, and the axis they lie on; layout: how those are laid out, [1, T], [T] or [R, W]. Of a
    context-parallel share: cp: what is cut, every "segment" or every "row"; cp_boundaries: the array that says where segments lie;
    cp_local: keys that become the share's own. result: what is returned instead of the dict.
    """
    name: str
    build: Callable[..., dict[str, Any]]
    keys: tuple[str, ...]
    labels: str | None = None
    weights: bool = False
    framework: str = "torch"
    token_axes: Mapping[str, int] = field(default_factory=dict)
    layout: str = "[1, T]"
    cp: str = "segment"
    cp_boundaries: str = "cu_seqlens"
    cp_local: Callable[[dict[str, Any], int], dict[str, Any]] | None = None
    result: Callable[[dict[str, Any]], Any] | None = None
    doc: str = ""

    def __call__(self, batch: Batch, *, extras: tuple[str, ...] = (), convert: bool = True, framework: str | None = None,
                 cp_size: int = 1, cp_rank: int = 0, **options: Any) -> Any:
        """The consumer's form of the batch.

        extras: arrays of the batch to add under their own names, laid out like the others; "loss_weight" follows the labels'
        convention. convert: False refuses (Mismatch) a feed whose labels have the other
        convention, True converts. framework: "torch" or "numpy". options: the adapter's own, see its module.
        cp_size, cp_rank: the share of a context-parallel rank. Its labels are always shifted, since the token that follows a chunk
        is on another rank: a consumer that expects unshifted ones gets them as `shift_labels`, instead of `labels`.
        Mismatch: labels of the other convention with convert=False; weights that no key would carry. InvalidArgument: an extra
        that the batch does not have, a cp_size that does not divide the segments.
        """
        extras, batch = tuple(extras), plain(batch)
        self._check_labels(batch, convert)
        carries = self.weights or "loss_weight" in extras
        if not carries:
            self._refuse_weights(batch)
        shared = cp_size != 1
        view = View(batch, "shifted" if shared else self.labels, carries)
        output = self.build(view, **options)
        axes = dict(self.token_axes)
        for name in extras:
            output[name], axes[name] = self._extra(view, name, "[R, W]" if options.get("flat") is False else self.layout)
        if shared:
            self._share(view, output, axes, cp_size, cp_rank)
            if self.labels == "unshifted" and "labels" in output:
                output["shift_labels"] = output.pop("labels")
        if (framework or self.framework) == "torch":
            output = as_torch(output, {name for name in extras if batch.dtypes.get(name) == "bfloat16"})
        return self.result(output) if self.result else output

    def _check_labels(self, batch: Batch, convert: bool) -> None:
        convention = batch.header["label_convention"]
        if not convert and self.labels and self.labels != convention:
            raise Mismatch(f"adapter {self.name} needs {self.labels} labels, the feed serves {convention}: set `labels: "
                           f"{self.labels}` in the feed's configuration, or let the adapter convert", reason="LABEL_CONVENTION")

    def indices(self, batch: Batch, cp_size: int, cp_rank: int) -> numpy.ndarray:
        """Positions of the flattened batch that a context-parallel rank holds, in its order; int64 [T / cp_size]."""
        batch = plain(batch)
        if self.cp == "row":
            return zigzag.rows(*batch["tokens"].shape, cp_size, cp_rank)
        return zigzag.segments(batch[self.cp_boundaries], cp_size, cp_rank)

    def _refuse_weights(self, batch: Batch) -> None:
        weights = batch["loss_weight"]
        odd = (weights != 0) & (weights != 1)
        if odd.any():
            raise Mismatch(f"the batch weighs its targets (one has {weights[odd][0]:g}), and no key of adapter {self.name} carries "
                           "weights, so the loss would be another one: add extras=(\"loss_weight\",) and use it, or set "
                           "`loss_weight: token` and push without weights", reason="WEIGHTS_NOT_CARRIED")

    def _extra(self, view: View, name: str, layout: str) -> tuple[numpy.ndarray, int | None]:
        if name not in view.batch:
            raise InvalidArgument(f"adapter {self.name}: the batch has no array {name!r} for extras; it has {list(view.batch)}")
        array = view[name]
        if array.shape[:2] != (view.rows, view.width):
            return array, None
        if layout == "[T]":
            return array.reshape(view.total, *array.shape[2:]), 0
        return (view.flat(array) if layout == "[1, T]" else array), 1

    def _share(self, view: View, output: dict[str, Any], axes: Mapping[str, int | None], cp_size: int, cp_rank: int) -> None:
        index = zigzag.rows(1, view.width, cp_size, cp_rank) if self.cp == "row" else self.indices(view.batch, cp_size, cp_rank)
        for name, axis in ({name: 1 for name in view.batch if view.batch[name].shape[:2] == (view.rows, view.width)} | axes).items():
            if axis is not None and isinstance(output.get(name), numpy.ndarray):
                output[name] = _take(output[name], axis % output[name].ndim, index, view)
        if self.cp_local:
            output.update(self.cp_local(output, cp_size))


def _take(array: numpy.ndarray, axis: int, index: numpy.ndarray, view: View) -> numpy.ndarray:
    """Entries `index` along the axis: of a row where they are fewer than a row's, of the flattened batch [.., R, W, ..] else."""
    if array.shape[axis] == view.total or len(index) < view.width:
        return numpy.take(array, index, axis=axis)
    before, behind = array.shape[:axis - 1], array.shape[axis + 1:]
    taken = numpy.take(array.reshape(*before, view.total, *behind), index, axis=axis - 1)
    return taken.reshape(*before, view.rows, len(index) // view.rows, *behind)


def int64(array: numpy.ndarray) -> numpy.ndarray:
    """A converted copy."""
    return array.astype("int64")


def as_torch(value: Any, bfloat16: set[str] | frozenset[str] = frozenset()) -> Any:
    """Arrays as torch tensors over the same memory (read-only ones copied); one array gives one tensor however often it appears.

    bfloat16: keys whose uint16 arrays hold such numbers, which NumPy lacks.
    """
    import torch
    made: dict[int, Any] = {}

    def tensor(array: numpy.ndarray) -> Any:
        if id(array) not in made:
            writable = array if array.flags.writeable else array.copy()
            made[id(array)] = torch.from_numpy(numpy.ascontiguousarray(writable))
        return made[id(array)]

    def convert(key: str, item: Any) -> Any:
        if isinstance(item, dict):
            return {name: convert(name, inner) for name, inner in item.items()}
        if not isinstance(item, numpy.ndarray):
            return item
        return tensor(item.view("int16")).view(torch.bfloat16) if key in bfloat16 else tensor(item)

    return convert("", value)
