"""PyTorch: a data set of ready batches, and batches as tensors.

    data = packd.torch.PackedDataset("127.0.0.1:7070", job="train", rows=2)
    for batch in torch.utils.data.DataLoader(data, batch_size=None):
        loss = (model(batch["tokens"], ...) * batch["loss_weight"]).sum() / batch.loss_denominator

libpackd's thread receives ahead, so num_workers=0 is the fast way: no copy at all between socket and tensor, but the one to the device.
num_workers=1 costs one copy into shared memory. More are refused: every worker would be given the same batches.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.utils.data

from packd import adapters, errors
from packd.batch import NUMPY_DTYPES, Batch, Named
from packd.job import Job

STATE_VERSION = 1
_SIGNED = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}  # torch can do little with unsigned types: the same bits


def _torch_dtype(name: str) -> torch.dtype:
    return getattr(torch, _SIGNED.get(name, name))


def _tensor(array: Any, dtype: str) -> torch.Tensor:
    """The array as a tensor over the same memory."""
    tensor = torch.from_numpy(array.view(_SIGNED[array.dtype.name]) if array.dtype.name in _SIGNED else array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    """The batch's arrays as tensors over the same memory; unsigned types wider than a byte as signed ones of the same bits."""
    if not isinstance(batch, Batch):
        raise TypeError(f"batch is {type(batch).__name__}: expected a packd.Batch")
    return {name: _tensor(array, batch.dtypes[name]) for name, array in batch.items()}


class TensorBatch(Named):
    """A Batch as torch tensors: batch["tokens"], keys(), items(), `header` as in Batch, `state` to resume behind it.

    All tensors are views of one buffer (`payload`, uint8) where the batch came from a server, so to() and pin_memory() are one copy each and a
    worker hands over one block of shared memory.
    """

    def __init__(self, table: Mapping[str, torch.Tensor] | list[tuple], payload: torch.Tensor | None, header: dict[str, Any],
                 dtypes: Mapping[str, str], state: dict[str, Any] | None = None):
        """table: tensors, or (name, shape, offset, bytes) of each in the payload."""
        self.payload, self.header, self.dtypes, self.state = payload, header, dict(dtypes), state
        self._table = table
        self._arrays = dict(table) if payload is None else {
            name: payload[offset:offset + size].view(_torch_dtype(self.dtypes[name])).view(shape) for name, shape, offset, size in table}

    @classmethod
    def of(cls, batch: Batch, state: dict[str, Any] | None = None) -> TensorBatch:
        """Over the memory of a Batch."""
        if not isinstance(batch, Batch) or batch.payload is None:
            return cls(tensors(batch), None, batch.header, batch.dtypes, state)
        start = batch.payload.__array_interface__["data"][0]
        table = [(name, array.shape, array.__array_interface__["data"][0] - start, array.nbytes) if array.size else (name, array.shape, 0, 0)
                 for name, array in batch.items()]
        return cls(table, torch.from_numpy(batch.payload), batch.header, batch.dtypes, state)

    def numpy(self) -> Batch:
        """As a Batch over the same memory, for packd.adapters. Tensors on a device are copied to the CPU."""
        arrays = {}
        for name, tensor in self._arrays.items():
            kind = NUMPY_DTYPES[self.dtypes[name]]
            flat = tensor.cpu() if tensor.dtype != torch.bfloat16 else tensor.cpu().view(torch.int16)
            arrays[name] = flat.numpy().view(kind)
        return Batch(arrays, self.header, dtypes=self.dtypes)

    def _moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> TensorBatch:
        if self.payload is None:
            return TensorBatch({name: move(tensor) for name, tensor in self.items()}, None, self.header, self.dtypes, self.state)
        return TensorBatch(self._table, move(self.payload), self.header, self.dtypes, self.state)

    def to(self, device: Any, non_blocking: bool = False) -> TensorBatch:
        """On another device, by one copy."""
        return self._moved(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> TensorBatch:
        """In page-locked memory, by one copy; itself where it is there already (PackedDataset(pin_memory=True))."""
        first = self.payload if self.payload is not None else next(iter(self._arrays.values()))
        return self if first.is_pinned() else self._moved(lambda tensor: tensor.pin_memory())

    def __reduce__(self):
        return TensorBatch, (self._table, self.payload, self.header, self.dtypes, self.state)


class PinnedMemory:
    """Payload memory that is page-locked once and used again and again (packd.Job's `memory`)."""

    def __init__(self) -> None:
        self._lock, self._held = threading.Lock(), {}

    def allocate(self, size: int, alignment: int) -> int:
        """Address of page-locked memory; 0 where CUDA has none."""
        try:
            block = torch.empty(size + alignment, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:
            return 0
        address = -(-block.data_ptr() // alignment) * alignment
        with self._lock:
            self._held[address] = block
        return address

    def release(self, address: int) -> None:
        """Gives it back."""
        with self._lock:
            del self._held[address]


def data_rank(mesh: Any, dims: tuple[str, ...] = ("dp_replicate", "dp_shard")) -> tuple[int, int]:
    """(dp_rank, dp_size) of this process in a DeviceMesh: its place along `dims`, as far as the mesh has them.

    Ranks that differ only along other dimensions (tensor, context, pipeline) get the same dp_rank and so the same batches. InvalidArgument: the
    mesh has none of them.
    """
    if not hasattr(mesh, "mesh_dim_names"):
        raise TypeError(f"mesh is {type(mesh).__name__}: expected a torch.distributed.DeviceMesh")
    names = tuple(mesh.mesh_dim_names or ())
    used = [name for name in dims if name in names]
    if not used:
        raise errors.InvalidArgument(f"the mesh has the dimensions {list(names)} and none of {list(dims)}: name its data-parallel ones with dims=",
                                     reason="DP_RANK")
    rank, size = 0, 1
    for name in used:
        extent = mesh.size(names.index(name))
        rank, size = rank * extent + mesh.get_local_rank(name), size * extent
    return rank, size


def world_token(group: Any = None) -> str:
    """A token for this launch, the same on all ranks of the process group (its first rank draws it; a collective call)."""
    token = [uuid.uuid4().hex]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        source = torch.distributed.get_global_rank(group, 0) if group is not None else 0
        torch.distributed.broadcast_object_list(token, src=source, group=group)
    return token[0]


def _world(mesh: Any, dp_rank: int | None, dp_size: int | None) -> tuple[int, int]:
    if (dp_rank is None) != (dp_size is None) or (mesh is not None and dp_rank is not None):
        raise errors.InvalidArgument("give dp_rank and dp_size together, or mesh, or neither", reason="DP_RANK")
    if mesh is not None:
        return data_rank(mesh)
    if dp_rank is not None:
        return dp_rank, dp_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class PackedDataset(torch.utils.data.IterableDataset):
    """Ready batches of one data-parallel rank; for DataLoader(dataset, batch_size=None), or to be iterated directly.

    Yields TensorBatch, or what `adapter` makes of each Batch. All ranks end behind the same step. Iterating again goes on behind the last batch
    yielded (at once at its end, once the feed has ended).

    state_dict() is small and picklable and speaks of the last batch yielded, not of those received ahead; the same on every rank. It can be loaded in a
    world of another size with the same step_packs, at a step's end.

    Args:
        server, job, feed, rows, accum: as packd.Job.
        dp_rank, dp_size: this data-parallel rank of how many. mesh: a DeviceMesh instead (see data_rank). Neither: those of
            torch.distributed where it is initialised, else 0 of 1.
        adapter: a name of packd.adapters, or a function of a packd.Batch; adapter_options: keyword arguments for it.
        pin_memory: receive into page-locked memory, without a copy (num_workers=0 only; DataLoader's own pin_memory copies).
        options: everything else that packd.Job takes (world_token, timeout, start, labels, prefetch, on_commit_needed, ...).

    Raises InvalidArgument: unknown adapter, dp_rank without dp_size; iterating raises what packd.Job raises, and InvalidArgument
    (NUM_WORKERS) in more than one worker.
    """

    def __init__(self, server: str | None = None, *, job: str, feed: str = "default", rows: int = 1, accum: int = 1, mesh: Any = None,
                 dp_rank: int | None = None, dp_size: int | None = None, adapter: str | Callable[[Batch], Any] | None = None,
                 adapter_options: Mapping[str, Any] | None = None, pin_memory: bool = False, **options: Any):
        super().__init__()
        for name in ("resume_step", "log_id", "memory"):
            if name in options:
                raise errors.InvalidArgument(f"{name} is not for PackedDataset: load_state_dict() resumes, pin_memory=True places batches",
                                             reason="BAD_RANGE")
        if adapter is not None and not isinstance(adapter, str) and not callable(adapter):
            raise TypeError(f"adapter is {type(adapter).__name__}: expected a name of packd.adapters or a function of a Batch")
        rank, size = _world(mesh, dp_rank, dp_size)
        self._world = {"dp_size": size, "rows": rows, "accum": accum}
        self._options = {"server": server, "job": job, "feed": feed, "dp_rank": rank, **self._world, **options}
        self._adapter = adapters.get(adapter) if isinstance(adapter, str) else adapter
        self._adapter_options = dict(adapter_options or {})
        self._pin_memory = pin_memory
        self._job: Job | None = None
        self._log_id: str | None = None
        self._step: int | None = None  # last step yielded whole; None: nothing yielded or loaded
        self._micros = 0               # batches of the next step that have been yielded
        self._elsewhere = torch.zeros(1, dtype=torch.uint8).share_memory_()  # 1: a worker process iterates

    @property
    def step_packs(self) -> int:
        """Packs per optimiser step."""
        world = self._world
        return self._options.get("step_packs") or world["dp_size"] * world["rows"] * world["accum"]

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            if worker.num_workers > 1:
                raise errors.InvalidArgument(f"num_workers={worker.num_workers}: each worker would be given the same batches; use num_workers=0 "
                                             "(libpackd receives ahead in a thread of its own) or 1", reason="NUM_WORKERS")
            if self._pin_memory:
                raise errors.InvalidArgument("PackedDataset(pin_memory=True) in a worker process: page-locked memory cannot be shared; use "
                                             "num_workers=0, or DataLoader(pin_memory=True)", reason="NUM_WORKERS")
            self._elsewhere[0] = 1
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        with self._open() as job:
            self._job = job
            try:
                skip = self._micros
                for batch in job:
                    if skip > 0:  # yielded before the state was saved
                        skip -= 1
                        continue
                    self._note(batch)
                    yield self._made(batch)
                    del batch
            finally:
                self._job = None

    def _open(self, **more: Any) -> Job:
        memory = self._pinned() if self._pin_memory else None
        resume = {} if self._step is None else {"resume_step": self._step}
        job = Job(**self._options | resume | {"log_id": self._log_id, "memory": memory} | more)
        self._log_id = job.info["log_id"]
        if self._step is None:
            self._step = job.info["first_step"] - 1
        return job

    @staticmethod
    def _pinned() -> PinnedMemory:
        if not torch.cuda.is_available():
            raise errors.Unsupported("pin_memory=True: this torch has no CUDA device to pin memory for", reason="NO_DEVICE")
        return PinnedMemory()

    def _note(self, batch: Batch) -> None:
        last = batch.micro + 1 == batch.header["accum"]
        self._step = batch.step if last else batch.step - 1
        self._micros = 0 if last else batch.micro + 1

    def _made(self, batch: Batch) -> Any:
        return self._adapter(batch, **self._adapter_options) if self._adapter else TensorBatch.of(batch, self._state())

    def _state(self) -> dict[str, Any]:
        return {"version": STATE_VERSION, "log_id": self._log_id, "feed": self._options["feed"], "job": self._options["job"], "step": self._step,
                "micros": self._micros, "step_packs": self.step_packs, **self._world}

    def state_dict(self) -> dict[str, Any]:
        """Where to resume: {log_id, feed, job, step (last one yielded whole), micros (yielded of the next), step_packs, ...}.

        Mismatch: a DataLoader worker iterates, so this process does not know; use batch.state, or torchdata's StatefulDataLoader.
        """
        if self._elsewhere[0] and torch.utils.data.get_worker_info() is None:
            raise errors.Mismatch("a DataLoader worker iterates this data set, so its state is not known here: save the last batch's `state`, use "
                                  "torchdata's StatefulDataLoader, or num_workers=0", reason="STATE_IN_WORKER")
        return self._state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes behind what a state_dict() speaks of; acts at the next iter().

        Mismatch: of another job, feed or format, of another number of packs per step, or within a step of a world of another shape.
        """
        mine = self._state()
        missing = [name for name in mine if name not in state] if isinstance(state, Mapping) else list(mine)
        if missing:
            raise errors.InvalidArgument(f"the state is {type(state).__name__} without {', '.join(missing)}: expected what state_dict() returned",
                                         reason="STATE")
        for name in ("version", "feed", "job"):
            if state.get(name) != mine[name]:
                raise errors.Mismatch(f"the state is of {name} {state.get(name)!r}, this data set of {mine[name]!r}", reason="STATE")
        if state["step_packs"] != self.step_packs and not self._options.get("regroup"):
            raise errors.Mismatch(f"the state's steps have {state['step_packs']} packs, dp_size * rows * accum = {self.step_packs} here: choose rows and "
                                  "accum that give the same, or commit the state's step and pass regroup=True", reason="REGROUP")
        world = {name: state[name] for name in self._world}
        if state["micros"] and world != self._world:
            raise errors.Mismatch(f"the state was saved within step {state['step'] + 1} of the world {world}, this one is {self._world}: save states at the "
                                  "end of a step to change it", reason="STATE")
        self._log_id, self._step, self._micros = state["log_id"], state["step"], state["micros"]

    def commit(self, step: int | None = None, timeout: float | None = None) -> None:
        """States that steps up to `step` (None: the last one yielded whole) are in a saved checkpoint. Call it on one rank or on all.

        Raises as packd.Job.commit; InvalidArgument: there is no such step yet.
        """
        if step is None:
            step = self.state_dict()["step"]
        if step is None or step < 0:
            raise errors.InvalidArgument("commit: no step has been yielded yet", reason="COMMIT_BEYOND_FETCHED")
        if self._job is not None:
            self._job.commit(step, timeout)
            return
        with self._open(resume_step=step, prefetch=1) as job:
            job.commit(step, timeout)

    def __getstate__(self) -> dict[str, Any]:
        """For a worker that is spawned: everything but the open job."""
        return self.__dict__ | {"_job": None}
