"""Named tensors and media spans of a sample, on their way to libpackd.

    producer.put(tokens, tensors={"advantage": advantages})                      # an array: one element a token
    producer.put(tokens, tensors={"action": packd.Tensor(actions, axis="sample", loss=True, pad_mask="action_is_pad"),
                                  "action_is_pad": packd.Tensor(is_pad, axis="sample")},
                 spans=[packd.Span(offset=4, length=64, view="wrist", grid=(1, 16, 16))], merge=4)

What a tensor is (dtype, axis, dims, unit, ...) is the feed's from its first use on; only its values change from sample to sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from packd import _lib, _ragged
from packd.batch import NUMPY_DTYPES
from packd.errors import InvalidArgument

AXES = {"token": 1, "ragged": 2, "sample": 3}
UNITS = {"sample": 0, "span": 1, "patch": 2, "run": 3}
DTYPES = {name: code for code, name in enumerate(NUMPY_DTYPES, 1)}


@dataclass(frozen=True)
class Tensor:
    """A named tensor of one sample (put_many: of all its samples).

    values: an array, first dimension the elements (axis "sample": the one element itself). bfloat16: a torch tensor, or uint16 with dtype="bfloat16".
    axis: "token": one element a token, cut and padded with the tokens. "ragged": any number, served concatenated. "sample": one.
    unit: what the elements of a ragged tensor belong to: "sample", "span", "patch", or "run" with run_counts elements for each span.
    views: units of spans: only spans of these views. align: token tensors: "target" (like labels) or "input".
    pad_value: what padding holds. loss: a training target with a total of its own, pad_mask naming the tensor that says what of it is padding.
    """
    values: Any
    axis: str = "token"
    dtype: str | None = None
    unit: str = "sample"
    run_counts: Any = None
    views: Sequence[str] = ()
    align: str = "target"
    pad_value: float = 0
    loss: bool = False
    pad_mask: str | None = None


@dataclass(frozen=True)
class Span:
    """Media in a sample: `length` placeholder tokens from `offset` on, served whole or not at all.

    view: say, the camera; None: "default". grid: (t, h, w) in patches, patches then follow. t_scale: M-RoPE, time per frame.
    """
    offset: int
    length: int
    view: str | None = None
    patches: int = 0
    grid: tuple[int, int, int] | None = None
    t_scale: float = 1.0


def as_tensor(name: str, given: Any) -> Tensor:
    """A bare array is a token tensor."""
    return given if isinstance(given, Tensor) else Tensor(given)


def as_values(name: str, tensor: Tensor) -> tuple[numpy.ndarray, str]:
    """Contiguous little-endian array of the values, and the dtype's name. InvalidArgument: of a type no tensor has."""
    values, dtype = tensor.values, tensor.dtype
    if str(getattr(values, "dtype", "")) == "torch.bfloat16":
        import torch
        values, dtype = values.detach().cpu().view(torch.int16).numpy().view("uint16"), "bfloat16"
    try:
        array = numpy.asarray(values)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"tensor {name}: {error}", reason="BAD_TENSOR") from error
    dtype = dtype or array.dtype.name
    if dtype not in NUMPY_DTYPES or array.dtype.name not in (dtype, NUMPY_DTYPES[dtype]):
        raise InvalidArgument(f"tensor {name}: values of {array.dtype} as {dtype}: expected one of {', '.join(NUMPY_DTYPES)}", reason="BAD_TENSOR")
    return numpy.ascontiguousarray(array, array.dtype.newbyteorder("<")), dtype


def _scalar(name: str, value: float, dtype: str) -> bytes:
    """One element's bytes, all of them: libpackd reads as many as the dtype has."""
    if not isinstance(value, (bool, int, float, numpy.number, numpy.bool_)):
        raise InvalidArgument(f"tensor {name}: pad_value {value!r:.100}: expected a number", reason="BAD_TENSOR")
    if dtype == "bfloat16":  # the upper half of a float32
        return numpy.array(value, "<f4").tobytes()[2:]
    try:
        return numpy.array(value).astype(NUMPY_DTYPES[dtype]).tobytes()
    except (OverflowError, ValueError) as error:
        raise InvalidArgument(f"tensor {name}: pad_value {value!r:.100} as {dtype}: {error}", reason="BAD_TENSOR") from error


def _choice(what: str, value: str, choices: Mapping[str, int]) -> int:
    if value not in choices:
        raise InvalidArgument(f"{what}={value!r}: expected one of {list(choices)}", reason="BAD_TENSOR")
    return choices[value]


def _check_mapping(tensors: Any) -> None:
    if not isinstance(tensors, Mapping):
        raise InvalidArgument(f"tensors is {type(tensors).__name__}: expected a mapping of names to arrays", reason="BAD_TENSOR")


class Filler:
    """C structs of one call, and whatever they point to."""

    def __init__(self, ffi: Any):
        self.ffi, self.kept = ffi, []

    def keep(self, thing: Any) -> Any:
        """Lives as long as the filler."""
        self.kept.append(thing)
        return thing

    def _text(self, what: str, value: str) -> Any:
        """A C string. InvalidArgument: no text, or text that C would cut at its NUL."""
        if not isinstance(value, str) or "\0" in value:
            raise InvalidArgument(f"{what} {value!r}: expected text without NUL", reason="BAD_NAME")
        return self.keep(self.ffi.new("char[]", _ragged.utf8(what, value)))

    def spans(self, sample: Any, spans: Sequence[Span], merge: int) -> None:
        """Into a struct packd_sample."""
        if not isinstance(spans, Sequence) or not all(isinstance(span, Span) for span in spans):
            raise InvalidArgument(f"spans={spans!r:.100}: expected a list of packd.Span", reason="BAD_SPAN")
        c = self.keep(self.ffi.new("struct packd_span[]", len(spans)))
        for to, span in zip(c, spans):
            try:
                to.offset, to.length, to.patches, to.t_scale = span.offset, span.length, span.patches, span.t_scale
                to.grid_t, to.grid_h, to.grid_w = span.grid or (0, 0, 0)
            except (OverflowError, TypeError, ValueError) as error:
                raise InvalidArgument(f"{span}: {error}", reason="BAD_SPAN") from error
            if span.view is not None:
                to.view = self._text("a span's view", span.view)
        sample.spans, sample.span_count, sample.merge = c, len(spans), _lib.whole("merge", merge, 0, (1 << 32) - 1)

    def tensor(self, to: Any, name: str, tensor: Tensor) -> tuple[numpy.ndarray, int]:
        """What a tensor is, into a struct packd_tensor, without its values; those as an array, and how many bytes an element has."""
        array, dtype = as_values(name, tensor)
        dims = array.shape if tensor.axis == "sample" else array.shape[1:]
        if len(dims) > 3 or (tensor.axis != "sample" and array.ndim == 0):
            raise InvalidArgument(f"tensor {name}: elements of {list(dims)}: expected at most 3 dimensions each", reason="BAD_TENSOR")
        to.name, to.dtype, to.axis = self._text("tensors: the name", name), DTYPES[dtype], _choice("axis", tensor.axis, AXES)
        to.unit, to.ndim, to.is_loss = _choice("unit", tensor.unit, UNITS), len(dims), tensor.loss
        to.align_input = _choice("align", tensor.align, {"target": 0, "input": 1})
        for at, size in enumerate(dims):
            to.dims[at] = size
        if not isinstance(tensor.pad_value, (int, float)) or tensor.pad_value != 0:
            to.pad_value = self.keep(self.ffi.new("uint8_t[]", _scalar(name, tensor.pad_value, dtype)))
        if tensor.pad_mask is not None:
            to.pad_mask = self._text(f"tensor {name}: pad_mask", tensor.pad_mask)
        if tensor.views:
            views = [self._text(f"tensor {name}: view", view) for view in tensor.views]
            to.span_views, to.span_view_count = self.keep(self.ffi.new("const char *[]", views)), len(views)
        if tensor.run_counts is not None:
            counts = self.keep(numpy.ascontiguousarray(_ragged.as_int32("run_counts", tensor.run_counts, 0), "uint32"))
            to.run_counts = self.ffi.from_buffer("uint32_t[]", counts)
        return self.keep(array), int(numpy.prod(dims, dtype="int64")) * array.itemsize

    def point(self, to: Any, array: numpy.ndarray, first_byte: int, elements: int) -> None:
        """The values of one sample."""
        to.data, to.elements = self.ffi.cast("void *", array.__array_interface__["data"][0] + first_byte), elements

    def tensors(self, sample: Any, tensors: Mapping[str, Any], count: int) -> None:
        """Into a struct packd_sample of `count` tokens. InvalidArgument: a token tensor of another length."""
        _check_mapping(tensors)
        c = self.keep(self.ffi.new("struct packd_tensor[]", len(tensors)))
        for to, (name, given) in zip(c, tensors.items()):
            tensor = as_tensor(name, given)
            array, _ = self.tensor(to, name, tensor)
            elements = 1 if tensor.axis == "sample" else len(array)
            if tensor.axis == "token" and elements != count:
                raise InvalidArgument(f"tensor {name} has {elements} elements for {count} tokens: expected one for each, or "
                                      "packd.Tensor(..., axis=\"ragged\" or \"sample\")", reason="BAD_TENSOR")
            if tensor.run_counts is not None and numpy.size(tensor.run_counts) != sample.span_count:  # libpackd reads one for each span
                raise InvalidArgument(f"tensor {name}: run_counts has {numpy.size(tensor.run_counts)} entries for {sample.span_count} spans: expected one "
                                      "for each", reason="BAD_SHAPE")
            self.point(to, array, 0, elements)
        sample.tensors, sample.tensor_count = c, len(tensors)

    def token_tensors(self, tensors: Mapping[str, Any], lengths: numpy.ndarray) -> Any:
        """struct packd_tensor[samples * tensors] of token tensors laid out as all samples' tokens."""
        _check_mapping(tensors)
        c = self.keep(self.ffi.new("struct packd_tensor[]", len(tensors) * len(lengths)))
        for number, (name, given) in enumerate(tensors.items()):
            tensor = as_tensor(name, given)
            if tensor.axis != "token" or tensor.run_counts is not None:
                raise InvalidArgument(f"tensor {name}: put_many takes token tensors; use put() for {tensor.axis} ones", reason="BAD_TENSOR")
            array, size = self.tensor(c[number], name, tensor)
            if len(array) != lengths.sum():
                raise InvalidArgument(f"tensor {name} has {len(array)} elements for {lengths.sum()} tokens: expected one for each", reason="BAD_TENSOR")
            at = 0
            for row, length in enumerate(lengths.tolist()):
                to = c[row * len(tensors) + number]
                if row:
                    self.ffi.memmove(self.ffi.addressof(to), self.ffi.addressof(c[number]), self.ffi.sizeof("struct packd_tensor"))
                self.point(to, array, at * size, length)
                at += length
        return c
