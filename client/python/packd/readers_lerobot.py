"""Robot episodes in LeRobot's layout as samples: one for every frame, or every n-th; needs pyarrow.

    with packd.Producer(stream="aloha", source="aloha") as producer:
        producer.push(packd.readers_lerobot.frames("aloha", tokenize=tokenizer.encode, image_token=151655, before=[151652], after=[151653]))

What is read, below the data set's directory:

    meta/info.json                     features: dtype ("image", "video", ...) and shape; of videos, video_path and chunks_size
    meta/tasks.jsonl or tasks.parquet  task_index, task
    data/**/*.parquet                  a row a frame: action, observation.state, episode_index, frame_index, task_index, timestamp, image features

A sample is, for each camera, `before`, placeholders, `after`; then the task's text. Its tensors:

    state           float32 [K]      observation.state, where the data set has it
    action          float32 [C, A]   this frame's and the next; past the episode's end copies of the last
    action_is_pad   bool [C]         which those are; they weigh nothing
    frame           uint8, unit run  encoded bytes of each image, as stored
    frame_ref       uint8, unit run  of each video frame "PATH#t=SECONDS", PATH below the directory
    frame_ref_sha256  uint8 [32], unit span   of that file
    pixel_values    unit patch       instead of the three, where `patches` is given

Its key is "episode-E/frame-F", its group "episode-E". Videos are found in data sets of version 2 (a file for each episode and camera). A file that the data
set names must lie below its directory: a path that is absolute or has ".." is refused. Links there are followed, since caches of hubs are made of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy

from packd.errors import InvalidArgument, Unsupported
from packd.media import Span, Tensor
from packd.readers import Sample, Tokenize, utf8

Grid = tuple[int, int, int]
EDGES = ("height", "width")
PATCH, SIDE = 14, 2  # pixels along a patch, patches along a token, of Qwen2-VL
DIGESTS_MAX = 64  # an episode's videos and some more
MALFORMED = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, ZeroDivisionError)  # what reading a description may come to


def fit(height: int, width: int) -> Grid:
    """The grid of an image of so many pixels, cut down to whole tokens of PATCH * SIDE pixels, at least one along each edge."""
    token = PATCH * SIDE
    return 1, max(1, height // token) * SIDE, max(1, width // token) * SIDE


def frames(root: str | Path, *, tokenize: Tokenize | None = None, image_token: int = 256, before: Sequence[int] = (), after: Sequence[int] = (),
           cameras: Sequence[str] | None = None, chunk: int = 16, every: int = 1, merge: int = SIDE * SIDE,
           grid: Callable[[int, int], Grid] = fit, patches: Callable[[str, bytes], tuple[Any, Grid]] | None = None) -> Iterator[Sample]:
    """put()'s arguments for each frame, episode by episode; one episode is in memory at a time.

    tokenize: the task's text to token ids; None: its UTF-8 bytes. image_token, before, after: placeholders and what stands around them. cameras: names (what
    follows the last dot of the feature), in the order of the sample; None: all, by name. chunk: C. every: frames from one sample to the next.
    merge: patches per token. grid: of (height, width) in pixels, where frames stay encoded. patches: (camera, what `frame` or `frame_ref` would hold)
    -> ([P, D], grid), for patches made here.
    InvalidArgument: no such data set, a camera, column, task or file that it lacks, a shape or video_path that makes no sense, a path that leads out of its
    directory, a grid that is no multiple of the merge. Unsupported: no pyarrow; videos of version 3.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise Unsupported("LeRobot's episodes are Parquet files, which need pyarrow: pip install pyarrow") from error
    if chunk < 1 or every < 1:
        raise InvalidArgument(f"chunk={chunk}, every={every}: expected 1 or more")
    data = _DataSet(Path(root), pyarrow.parquet, cameras)
    words = {task: list((tokenize or utf8)(text)) for task, text in data.tasks.items()}
    for episode in data.episodes():
        actions = numpy.stack([numpy.asarray(row["action"], "float32") for row in episode])
        for at in range(0, len(episode), every):
            row = episode[at]
            tokens, spans, media = _media(data, row, grid, patches, merge, (image_token, list(before), list(after)))
            if row["task_index"] not in words:
                raise InvalidArgument(f"{data.root}: {_key(row)} has task {row['task_index']}, which meta/tasks does not", reason="BAD_RECORD")
            taken = numpy.arange(at, at + chunk)
            tensors = media | {
                "action": Tensor(actions[numpy.minimum(taken, len(episode) - 1)], axis="sample", loss=True, pad_mask="action_is_pad"),
                "action_is_pad": Tensor(taken >= len(episode), axis="sample")}
            if row.get("observation.state") is not None:
                tensors["state"] = Tensor(numpy.asarray(row["observation.state"], "float32"), axis="sample")
            yield {"tokens": numpy.array(tokens + words[row["task_index"]], "int64"), "key": _key(row), "group": f"episode-{row['episode_index']}",
                   "spans": spans, "merge": merge, "tensors": tensors}


def _key(row: Mapping[str, Any]) -> str:
    return f"episode-{row['episode_index']}/frame-{row['frame_index']}"


def _media(data: _DataSet, row: Mapping[str, Any], grid: Callable[[int, int], Grid], patches: Callable[[str, bytes], tuple[Any, Grid]] | None, merge: int,
           marks: tuple[int, list[int], list[int]]) -> tuple[list[int], list[Span], dict[str, Tensor]]:
    """Tokens, spans and tensors of one frame's cameras."""
    (image_token, before, after), tokens, spans, pixels = marks, [], [], []
    stored = [data.frame(row, camera) for camera in data.cameras]
    for camera, content in zip(data.cameras, stored):
        if patches is not None:
            values, shape = patches(camera, content)
            pixels.append(numpy.asarray(values))
        else:
            shape = grid(*data.size(camera))
        count = int(numpy.prod(shape))
        if count < merge or count % merge:
            raise InvalidArgument(f"{data.root}: camera {camera}: a grid of {tuple(shape)} has {count} patches: expected a multiple of merge = {merge}",
                                  reason="BAD_SPAN")
        tokens += before
        spans.append(Span(offset=len(tokens), length=count // merge, view=camera, grid=tuple(shape)))
        tokens += [image_token] * spans[-1].length + after
    if patches is not None:
        return tokens, spans, {"pixel_values": Tensor(numpy.concatenate(pixels), axis="ragged", unit="patch")} if pixels else {}
    return tokens, spans, _encoded(data, row, stored)


def _encoded(data: _DataSet, row: Mapping[str, Any], stored: list[bytes]) -> dict[str, Tensor]:
    """frame, and frame_ref with its digests, of those cameras that are images and videos."""
    made = {}
    for name, video in (("frame", False), ("frame_ref", True)):
        views = [camera for camera in data.cameras if data.is_video(camera) == video]
        if views:
            counts = [len(content) if camera in views else 0 for camera, content in zip(data.cameras, stored)]
            joined = b"".join(content for camera, content in zip(data.cameras, stored) if camera in views)
            made[name] = Tensor(numpy.frombuffer(joined, "uint8"), axis="ragged", unit="run", run_counts=counts, views=views)
            if video:
                digests = numpy.stack([data.digest(data.video(row, camera)) for camera in views])
                made["frame_ref_sha256"] = Tensor(digests, axis="ragged", unit="span", views=views)
    return made


class _DataSet:
    """The directory: its description, and rows as mappings."""

    def __init__(self, root: Path, parquet: Any, cameras: Sequence[str] | None):
        self.root, self.parquet = root, parquet
        self.digests: dict[str, numpy.ndarray] = {}
        try:
            self.info = json.loads((root / "meta" / "info.json").read_text())
            self.features = {name.rpartition(".")[2]: (name, feature) for name, feature in sorted(self.info["features"].items())
                             if feature["dtype"] in ("image", "video")}
        except MALFORMED as error:
            raise InvalidArgument(f"{root}: not a data set in LeRobot's layout: meta/info.json: {error!r}", reason="BAD_RECORD") from error
        self.cameras = list(self.features) if cameras is None else list(cameras)
        unknown = [camera for camera in self.cameras if camera not in self.features]
        if unknown:
            raise InvalidArgument(f"{root} has no camera {', '.join(unknown)}; it has {', '.join(self.features) or 'none'}", reason="BAD_RECORD")
        self.tasks = self._tasks()

    def _tasks(self) -> dict[int, str]:
        lines, table = self.root / "meta" / "tasks.jsonl", self.root / "meta" / "tasks.parquet"
        if not lines.exists() and not table.exists():
            raise InvalidArgument(f"{self.root}: neither meta/tasks.jsonl nor meta/tasks.parquet", reason="BAD_RECORD")
        try:
            if lines.exists():
                rows = [json.loads(line) for line in lines.read_text().splitlines() if line.strip()]
            else:  # version 3: the text is a pandas index
                rows = self.parquet.read_table(table).to_pylist()
            return {row["task_index"]: row["task"] if "task" in row else row["__index_level_0__"] for row in rows}
        except MALFORMED as error:
            raise InvalidArgument(f"{self.root}: meta/tasks: {error!r}: expected task_index and task of each", reason="BAD_RECORD") from error

    def episodes(self) -> Iterator[list[dict[str, Any]]]:
        """Rows of one episode after the other, files in the order of their names."""
        wanted = ["action", "observation.state", "episode_index", "frame_index", "task_index", "timestamp"]
        wanted += [self.features[camera][0] for camera in self.cameras if not self.is_video(camera)]
        for path in sorted((self.root / "data").rglob("*.parquet")):
            rows: list[dict[str, Any]] = []
            with self.parquet.ParquetFile(path) as file:
                names = set(file.schema_arrow.names)
                missing = [name for name in wanted if name not in names and name not in ("observation.state", "timestamp")]
                if missing:
                    raise InvalidArgument(f"{path}: no column {', '.join(missing)}; it has {', '.join(sorted(names))}", reason="BAD_RECORD")
                for batch in file.iter_batches(batch_size=256, columns=[name for name in wanted if name in names]):
                    for row in batch.to_pylist():
                        if rows and row["episode_index"] != rows[-1]["episode_index"]:
                            yield rows
                            rows = []
                        rows.append(row)
            if rows:
                yield rows

    def is_video(self, camera: str) -> bool:
        return self.features[camera][1]["dtype"] == "video"

    def size(self, camera: str) -> tuple[int, int]:
        """Height and width in pixels: by the names of the shape, else by which end has the channels."""
        feature = self.features[camera][1]
        shape, names = feature.get("shape"), feature.get("names")
        if not isinstance(shape, list) or len(shape) != 3 or not all(isinstance(edge, int) and edge > 0 for edge in shape):
            raise InvalidArgument(f"{self.root}: camera {camera} has shape {shape!r}: expected height, width and channels", reason="BAD_RECORD")
        if isinstance(names, list) and len(names) == len(shape) and all(name in names for name in EDGES):
            return tuple(shape[names.index(name)] for name in EDGES)
        return (shape[1], shape[2]) if shape[0] in (1, 3, 4) else (shape[0], shape[1])

    def frame(self, row: Mapping[str, Any], camera: str) -> bytes:
        """An image's encoded bytes; of a video, what names the frame."""
        if self.is_video(camera):
            return f"{self.video(row, camera)}#t={row.get('timestamp') or 0:.6f}".encode()
        cell = row[self.features[camera][0]]
        if isinstance(cell, dict):
            cell = cell.get("bytes") or self._read(cell.get("path"), f"{_key(row)}: {self.features[camera][0]}")
        if not isinstance(cell, bytes):
            raise InvalidArgument(f"{self.root}: {_key(row)}: {self.features[camera][0]} is {type(cell).__name__}: expected encoded bytes, or a "
                                  "structure of bytes and path", reason="BAD_RECORD")
        return cell

    def video(self, row: Mapping[str, Any], camera: str) -> str:
        """Path of the episode's video, below the directory."""
        template = self.info.get("video_path") or ""
        if not isinstance(template, str) or "{episode_index" not in template:
            raise Unsupported(f"{self.root}: video_path {template!r} has no file for each episode: only version 2 is read; choose cameras= that are images")
        try:
            episode = row["episode_index"]
            path = template.format(episode_index=episode, episode_chunk=episode // int(self.info.get("chunks_size", 1000)), video_key=self.features[camera][0])
        except MALFORMED as error:
            raise InvalidArgument(f"{self.root}: {_key(row)}: video_path {template!r}: {error!r}", reason="BAD_RECORD") from error
        self._below(path, f"video_path {template!r}")
        return path

    def digest(self, path: str) -> numpy.ndarray:
        """SHA-256 of a file below the directory, uint8 [32]; the last ones are kept."""
        if path not in self.digests:
            if len(self.digests) == DIGESTS_MAX:
                self.digests.clear()
            self.digests[path] = numpy.frombuffer(self._read(path, "video_path", hashed=True), "uint8")
        return self.digests[path]

    def _below(self, path: Any, what: str) -> Path:
        """Where a file is that the data set names. InvalidArgument: no path, or one that leads out of the directory."""
        named = PurePosixPath(path if isinstance(path, str) else "")
        if not named.parts or named.is_absolute() or ".." in named.parts:
            raise InvalidArgument(f"{self.root}: {what}: {path!r}: expected a path below the data set's directory", reason="BAD_RECORD")
        return self.root / path

    def _read(self, path: Any, what: str, hashed: bool = False) -> bytes:
        """The bytes of a file that the data set names, or their SHA-256."""
        place = self._below(path, what)
        try:
            with open(place, "rb") as file:
                return hashlib.file_digest(file, "sha256").digest() if hashed else file.read()
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{self.root}: {what}: {error}", reason="BAD_RECORD") from error
