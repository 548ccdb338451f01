"""Data sets as samples: each reader yields put()'s arguments as mappings, one sample at a time and in a fixed order.

    with packd.Producer(stream="docs", content_id=packd.readers.content_id("docs.jsonl")) as producer:
        producer.push(packd.readers.jsonl("docs.jsonl"))            # goes on where an earlier run has stopped

    jsonl(path)            one JSON object a line, .gz too
    hf(dataset)            Hugging Face datasets, map-style or streaming; any iterable of mappings
    parquet(path)          with pyarrow
    webdataset(path)       tar files whose members that share a name make a sample
    megatron(prefix)       prefix.bin and prefix.idx

A record holds `tokens` or `input_ids`, optionally labels, loss_mask, weight, key, group and version; or text, which `tokenize` turns into token ids
(None: its UTF-8 bytes): `text` or `content`, else all its strings but key and group, in their order, joined with newlines. That is packctl push's
rule too, which holds a file to the fields of its first record, while here each record is taken for itself. `text=NAME` (or NAME,NAME, joined) and
`tokens=NAME` name other fields. What a record holds beside that is passed over. One that has neither, or no tokens, is an InvalidArgument that names
its place.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, BinaryIO

import numpy

from packd.errors import InvalidArgument, Unsupported

Tokenize = Callable[[str], Sequence[int]]
Sample = dict[str, Any]

_CARRIED = ("labels", "loss_mask", "weight", "key", "group", "version")
_TOKENS, _TEXT = ("tokens", "input_ids"), ("text", "content")
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}


def utf8(text: str) -> numpy.ndarray:
    """The bytes of a text as token ids, 0 to 255."""
    if not isinstance(text, str):
        raise TypeError(f"text is {type(text).__name__}: expected str")
    return numpy.frombuffer(text.encode(), "uint8")


def content_id(*paths: str | os.PathLike) -> str:
    """A digest (hex) of files' bytes, for Producer(content_id=...): changed data cannot pass for what was pushed before."""
    digest = hashlib.sha256()
    for path in paths:
        with open(os.fspath(path), "rb") as file:  # a number would be taken for a descriptor, and closed
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def sample(record: Mapping[str, Any], where: str, *, tokens: str | None = None, text: str | None = None,
           tokenize: Tokenize | None = None) -> Sample:
    """One record as a sample; `where` is its place, for errors."""
    if not isinstance(record, Mapping):
        raise InvalidArgument(f"{where}: {type(record).__name__}: expected a mapping of names to values", reason="BAD_RECORD")
    made: Sample = {name: record[name] for name in _CARRIED if record.get(name) is not None}
    ids = next((record[name] for name in ((tokens,) if tokens else () if text else _TOKENS) if record.get(name) is not None), None)
    if ids is None:
        words = _words(record, tokens, text)
        if words is None:
            wanted = [name for name in (tokens, text) if name] or [*_TOKENS, *_TEXT, "other strings"]
            raise InvalidArgument(f"{where}: the record has {sorted(record)}: expected {' or '.join(wanted)}", reason="BAD_RECORD")
        ids = (tokenize or utf8)(words)
    if not isinstance(ids, Sized):
        raise InvalidArgument(f"{where}: tokens are {type(ids).__name__}: expected a list of token ids", reason="BAD_RECORD")
    if len(ids) == 0:
        raise InvalidArgument(f"{where}: no tokens; leave such records out", reason="BAD_RECORD")
    return made | {"tokens": ids}


def _words(record: Mapping[str, Any], tokens: str | None, text: str | None) -> str | None:
    """The text of a record without token ids; None: it has none."""
    if text or tokens:
        parts = [record.get(name) for name in (text.split(",") if isinstance(text, str) else [text])] if text else []
    else:
        parts = [record[name] for name in _TEXT if isinstance(record.get(name), str)][:1]
        parts = parts or [value for name, value in record.items() if isinstance(value, str) and name not in ("key", "group")]
    return "\n".join(parts) if parts and all(isinstance(part, str) for part in parts) else None


def jsonl(path: str | os.PathLike, **fields: Any) -> Iterator[Sample]:
    """One JSON object a line; empty lines are passed over. fields: as sample()."""
    opened = gzip.open if os.fspath(path).endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            where = f"{os.fspath(path)}:{number}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise InvalidArgument(f"{where}: not JSON: {error}", reason="BAD_RECORD") from error
            if not isinstance(record, dict):
                raise InvalidArgument(f"{where}: {type(record).__name__}: expected an object", reason="BAD_RECORD")
            yield sample(record, where, **fields)


def hf(dataset: Iterable[Mapping[str, Any]], **fields: Any) -> Iterator[Sample]:
    """Records of a datasets.Dataset, an IterableDataset, or any iterable of mappings, in their order; token columns come as NumPy
    arrays where the data set can give them so. fields: as sample()."""
    rows = dataset.with_format("numpy") if hasattr(dataset, "with_format") else dataset
    for number, record in enumerate(rows):
        where = f"record {number}"
        if not isinstance(record, Mapping):
            raise InvalidArgument(f"{where}: {type(record).__name__}: expected a mapping of names to values", reason="BAD_RECORD")
        yield sample({name: value.item() if isinstance(value, numpy.generic) else value for name, value in record.items()}, where, **fields)


def parquet(path: str | os.PathLike, *, batch_rows: int = 1024, **fields: Any) -> Iterator[Sample]:
    """Rows of a Parquet file, `batch_rows` in memory at a time. fields: as sample(). Unsupported: no pyarrow."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise Unsupported("Parquet files need pyarrow: pip install pyarrow") from error
    number = itertools.count()
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=batch_rows):
            columns = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
            for row in range(batch.num_rows):
                record = {name: _arrow(column[row]) for name, column in columns.items()}
                yield sample(record, f"{os.fspath(path)}: row {next(number)}", **fields)


def _arrow(scalar: Any) -> Any:
    """A pyarrow scalar: lists of numbers as NumPy arrays, everything else as Python's own."""
    values = getattr(scalar, "values", None)
    return values.to_numpy(zero_copy_only=False) if values is not None and hasattr(values, "to_numpy") else scalar.as_py()


def webdataset(path: str | os.PathLike | BinaryIO, **fields: Any) -> Iterator[Sample]:
    """Samples of a tar file: neighbouring members with the same name up to the first dot behind the last slash.

    NAME.json is a record; NAME.FIELD.npy is the array of that field and NAME.npy that of `tokens`; NAME.txt is text. The key is NAME, unless the
    record has one. Other members are passed over. fields: as sample().
    """
    if not isinstance(path, (str, os.PathLike)) and not hasattr(path, "read"):
        raise TypeError(f"path is {type(path).__name__}: expected a path, or a file opened to read bytes")
    place = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "tar"
    with tarfile.open(path, "r|*") if isinstance(path, (str, os.PathLike)) else tarfile.open(fileobj=path, mode="r|*") as archive:
        name, record = None, {}
        for member in archive:
            if not member.isfile():
                continue
            folder, _, base = member.name.rpartition("/")
            stem, _, kind = base.partition(".")
            stem = f"{folder}/{stem}" if folder else stem
            if stem != name and record:
                yield sample({"key": name} | record, f"{place}: {name}", **fields)
                record = {}
            name = stem
            _take_member(archive, member, kind, record, f"{place}: {member.name}", fields)
        if record:
            yield sample({"key": name} | record, f"{place}: {name}", **fields)


def _take_member(archive: tarfile.TarFile, member: tarfile.TarInfo, kind: str, record: dict[str, Any], where: str, fields: Mapping[str, Any]) -> None:
    if kind not in ("json", "txt", "npy") and not kind.endswith(".npy"):
        return
    data = archive.extractfile(member).read()
    try:
        if kind == "json":
            record.update(json.loads(data))
        elif kind == "txt":
            record[fields.get("text") or "text"] = data.decode()
        else:
            record[kind.removesuffix(".npy") if kind != "npy" else fields.get("tokens") or "tokens"] = numpy.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"{where}: {error}", reason="BAD_RECORD") from error


def megatron(prefix: str | os.PathLike, *, documents: bool = True) -> Iterator[Sample]:
    """Samples of Megatron's indexed data set: prefix.idx says where each lies in prefix.bin, which is mapped, not read whole.

    documents: True: a sample is a document, its sequences joined. False: each sequence is one. The key is the number. InvalidArgument: files that are
    not such a data set, or do not fit together.
    """
    lengths, pointers, bounds, dtype = _megatron_index(f"{os.fspath(prefix)}.idx")
    data = numpy.memmap(f"{os.fspath(prefix)}.bin", mode="r", dtype="uint8") if lengths.sum() else numpy.empty(0, "uint8")
    ends = pointers + lengths.astype("int64") * dtype.itemsize
    if len(ends) and (int(ends.max()) > len(data) or int(pointers.min()) < 0):
        raise InvalidArgument(f"{os.fspath(prefix)}.bin has {len(data)} bytes, its index speaks of {int(ends.max())}", reason="BAD_RECORD")
    groups = zip(bounds[:-1], bounds[1:]) if documents else ((n, n + 1) for n in range(len(lengths)))
    for number, (first, behind) in enumerate(groups):
        parts = [data[pointers[n]:ends[n]].view(dtype) for n in range(first, behind) if lengths[n]]
        if parts:  # Megatron keeps documents without tokens
            yield {"tokens": parts[0] if len(parts) == 1 else numpy.concatenate(parts), "key": str(number)}


def _megatron_index(path: str) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray, numpy.dtype]:
    """(lengths, byte pointers, first sequence of each document and the end, dtype of the tokens)."""
    with open(path, "rb") as file:
        data = file.read()
    head = len(_MEGATRON_MAGIC) + 8 + 1 + 8 + 8
    if len(data) < head or not data.startswith(_MEGATRON_MAGIC) or int.from_bytes(data[9:17], "little") != 1:
        raise InvalidArgument(f"{path}: not an index of Megatron's format, version 1", reason="BAD_RECORD")
    code, count, bounds = data[17], int.from_bytes(data[18:26], "little"), int.from_bytes(data[26:34], "little")
    if code not in _MEGATRON_DTYPES or "float" in _MEGATRON_DTYPES[code]:
        raise InvalidArgument(f"{path}: tokens of type {_MEGATRON_DTYPES.get(code, code)}: expected integers", reason="BAD_RECORD")
    if head + count * 12 + bounds * 8 > len(data):
        raise InvalidArgument(f"{path}: {count} sequences and {bounds} document bounds do not fit its {len(data)} bytes", reason="BAD_RECORD")
    lengths = numpy.frombuffer(data, "<i4", count, head)
    pointers = numpy.frombuffer(data, "<i8", count, head + 4 * count)
    documents = numpy.frombuffer(data, "<i8", bounds, head + 12 * count)
    if (len(documents) and (documents[0] != 0 or documents[-1] != count or (numpy.diff(documents) < 0).any())) or (lengths < 0).any():
        raise InvalidArgument(f"{path}: document bounds that do not rise from 0 to {count}, or negative lengths", reason="BAD_RECORD")
    return lengths, pointers, documents, numpy.dtype(_MEGATRON_DTYPES[code]).newbyteorder("<")
