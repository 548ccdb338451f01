"""What producers are given, as arrays that libpackd takes: checked, and copied only where they have to be.

An int32 array that is contiguous is used as it is. Other integer dtypes are converted after a check that every value fits; arrays that are not contiguous are
copied. Anything else is refused with the name of the argument, what it is, and what was expected.
"""

from __future__ import annotations

from typing import Any

import numpy

from packd.errors import InvalidArgument

INT32_MAX = 2 ** 31 - 1


def as_array(name: str, values: Any) -> numpy.ndarray:
    """One-dimensional NumPy array of whatever has one (lists, tensors on the CPU, JAX arrays)."""
    try:
        array = numpy.asarray(values)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{name}: {type(values).__name__} cannot be read as an array: {error}", reason="BAD_DTYPE") from error
    if array.ndim != 1:
        raise InvalidArgument(f"{name} has shape {list(array.shape)}: expected one dimension; put one sample at a time, or values and "
                              "lengths with put_many", reason="BAD_SHAPE")
    return array


def as_int32(name: str, values: Any, least: int = -INT32_MAX - 1) -> numpy.ndarray:
    """Contiguous int32. InvalidArgument: no integers, or a value below `least` or above int32; its place is named."""
    array = as_array(name, values)
    if array.size == 0:
        return numpy.empty(0, "int32")
    if array.dtype.kind not in "iu":
        raise InvalidArgument(f"{name} has dtype {array.dtype}: expected integers that fit int32", reason="BAD_DTYPE")
    low, high = int(array.min()), int(array.max())
    if high > INT32_MAX or low < -INT32_MAX - 1:
        at = int((array > INT32_MAX).argmax()) if high > INT32_MAX else int((array < -INT32_MAX - 1).argmax())
        raise InvalidArgument(f"{name}[{at}] is {array[at]}: it does not fit int32", reason="BAD_DTYPE")
    if low < least:
        at = int((array < least).argmax())
        raise InvalidArgument(f"{name}[{at}] is {array[at]}: expected {least} or more", reason="TOKEN_RANGE")
    return numpy.ascontiguousarray(array, "int32")


def as_mask(name: str, values: Any) -> numpy.ndarray:
    """Contiguous uint8, 0 or 1, of booleans or integers."""
    array = as_array(name, values)
    if array.size and array.dtype.kind not in "biu":
        raise InvalidArgument(f"{name} has dtype {array.dtype}: expected booleans or integers", reason="BAD_DTYPE")
    return numpy.ascontiguousarray(array != 0, "bool").view("uint8")


def as_bytes(name: str, value: bytes | str | None) -> bytes:
    """Bytes; text as UTF-8, None as none."""
    if value is None:
        return b""
    if isinstance(value, str):
        return utf8(name, value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise InvalidArgument(f"{name} is {type(value).__name__}: expected bytes or str", reason="BAD_DTYPE")


def utf8(name: str, value: str) -> bytes:
    """Text as UTF-8. InvalidArgument: half of a surrogate pair, which has no UTF-8."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} {value!r:.100}: character {error.start} is half of a surrogate pair: expected text that UTF-8 can hold",
                              reason="BAD_NAME") from error


def same_length(name: str, array: numpy.ndarray, count: int) -> None:
    """InvalidArgument: not one entry for each token."""
    if len(array) != count:
        raise InvalidArgument(f"{name} has {len(array)} entries for {count} tokens: expected one for each", reason="BAD_SHAPE")


def joined(name: str, values: Any, convert: Any) -> tuple[numpy.ndarray, numpy.ndarray]:
    """A list of samples as (values, lengths). InvalidArgument: no list, or as convert."""
    try:
        given = list(values)
    except TypeError as error:
        raise InvalidArgument(f"{name} is {type(values).__name__}: expected a list of samples, or one array with lengths or offsets",
                              reason="BAD_SHAPE") from error
    parts = [convert(f"{name}[{at}]", part) for at, part in enumerate(given)]
    lengths = numpy.array([len(part) for part in parts], "int64")
    return (numpy.concatenate(parts) if parts else convert(name, [])), lengths


def joined_alike(name: str, values: Any, convert: Any, counts: numpy.ndarray) -> numpy.ndarray:
    """A list of samples' values joined. InvalidArgument: not one entry for each token of each sample."""
    array, lengths = joined(name, values, convert)
    if len(lengths) != len(counts):
        raise InvalidArgument(f"{name} has {len(lengths)} entries for {len(counts)} samples: expected one for each", reason="BAD_SHAPE")
    if (lengths != counts).any():
        at = int((lengths != counts).argmax())
        raise InvalidArgument(f"{name}[{at}] has {lengths[at]} entries for {counts[at]} tokens: expected one for each", reason="BAD_SHAPE")
    return array


def lengths_of(count: int, lengths: Any, offsets: Any) -> numpy.ndarray:
    """int64 lengths of samples that cover `count` values. InvalidArgument: neither or both given, or they do not add up."""
    if (lengths is None) == (offsets is None):
        raise InvalidArgument("put_many: give lengths or offsets, one of them, with values in one array", reason="BAD_SHAPE")
    what = "lengths" if offsets is None else "offsets"
    given = as_array(what, lengths if offsets is None else offsets)
    if given.size and given.dtype.kind not in "iu":
        raise InvalidArgument(f"{what} has dtype {given.dtype}: expected integers", reason="BAD_DTYPE")
    over = given > count  # each one for itself, before anything is added up: 64-bit sums wrap around
    if over.any():
        at = int(over.argmax())
        raise InvalidArgument(f"{what}[{at}] is {given[at]}, but there are {count} values", reason="BAD_SHAPE")
    if offsets is not None and (given < 0).any():
        at = int((given < 0).argmax())
        raise InvalidArgument(f"{what}[{at}] is {given[at]}: expected 0 to {count}", reason="BAD_SHAPE")
    given = given.astype("int64")
    if offsets is not None:
        if given.size == 0 or given[0] != 0:
            raise InvalidArgument("offsets: expected samples + 1 entries from 0", reason="BAD_SHAPE")
        given = numpy.diff(given)
    if given.size and given.min() < 1:
        at = int((given < 1).argmax())
        raise InvalidArgument(f"{what}: sample {at} has {given[at]} tokens: expected at least 1", reason="EMPTY_SAMPLE")
    total = int(given.sum()) if len(given) * count < 1 << 63 else sum(given.tolist())
    if total != count:
        raise InvalidArgument(f"{what}: samples of {total} tokens in all, but there are {count} values", reason="BAD_SHAPE")
    return given
