"""packd.torch against a real daemon, with whatever torch is installed (Debian's 1.13 at least): no copies, states that resume exactly, one
worker or none, and the same end for every rank."""

import io
import os
import pickle
import tempfile
import traceback
import unittest

import numpy

import harness
import packd

try:
    import torch
    import torch.utils.data
    import packd.torch
except ImportError as error:
    torch = None
    print(f"SKIP: torch_test: {error}")

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None
    print("SKIP: torch_test: StatefulDataLoader: torchdata is not installed")

FEED = {"name": "default", "seq_len": 64, "window": 32}
COUNT = 200


def push(address, count=COUNT, feed="default", stream="s"):
    rng = numpy.random.default_rng(3)
    lengths = rng.integers(1, 60, count)
    with packd.Producer(address, stream=stream, feed=feed) as producer:
        producer.put_many(rng.integers(1, 1000, lengths.sum()), lengths=lengths)
        producer.end_feed()


class Mesh:
    """The part of torch's DeviceMesh that data_rank uses."""

    def __init__(self, **dims):
        self.mesh_dim_names, self.places = tuple(dims), list(dims.values())

    def size(self, at):
        return self.places[at][1]

    def get_local_rank(self, name):
        return self.places[self.mesh_dim_names.index(name)][0]


def first_tokens(batches):
    return [(batch.step, batch.micro, batch["tokens"].sum().item()) for batch in batches]


@unittest.skipIf(torch is None, "torch is not installed")
class DatasetTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Daemon(feeds=[FEED]).start()
        push(cls.server.address)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def data(self, job, **more):
        return packd.torch.PackedDataset(self.server.address, job=job, **more)

    def loader(self, *arguments, **more):
        return torch.utils.data.DataLoader(*arguments, batch_size=None, **more)

    def test_tensors_are_the_receive_buffer(self):
        batch = next(iter(self.loader(self.data("views", rows=2))))
        self.assertEqual((batch["tokens"].dtype, tuple(batch["tokens"].shape)), (torch.int32, (2, 64)))
        self.assertEqual(batch["loss_weight"].dtype, torch.float32)
        start, end = batch.payload.data_ptr(), batch.payload.data_ptr() + batch.payload.numel()
        for name, tensor in batch.items():
            self.assertTrue(tensor.numel() == 0 or start <= tensor.data_ptr() < end, name)
        self.assertIs(type(batch.max_seqlen), int)
        self.assertEqual(batch.max_seqlen, int(batch["cu_seqlens"].diff().max()))
        self.assertEqual(batch.loss_denominator, batch["loss_weight"].double().sum().item())
        self.assertEqual(batch.header["samples"][0].stream, "s")
        arrays = batch.numpy()
        self.assertTrue(numpy.shares_memory(arrays["labels"], batch["labels"].numpy()))
        shared = torch.from_dlpack(arrays["tokens"])
        self.assertEqual(shared.data_ptr(), batch["tokens"].data_ptr())
        moved = batch.to("cpu")
        self.assertTrue(all(torch.equal(moved[name], batch[name]) for name in batch))
        self.assertEqual(set(arrays.torch()), set(batch))

    def test_misuse_is_named(self):
        with self.assertRaisesRegex(TypeError, r"PackedDataset\(\) got an unexpected keyword argument 'row': did you mean 'rows'"):
            self.data("misuse", row=2)
        with self.assertRaisesRegex(packd.InvalidArgument, r"DataLoader\(data, batch_size=None\)"):
            next(iter(torch.utils.data.DataLoader(self.data("misuse"))))
        self.assertEqual(repr(next(iter(self.data("repr", rows=2)))), "TensorBatch(step=0, micro=0, dp_rank=0, [2, 64])")

    def test_every_way_of_loading_gives_the_same(self):
        plain = first_tokens(self.data("plain"))
        self.assertGreater(len(plain), 50)
        self.assertEqual([step for step, *_ in plain], list(range(len(plain))))
        self.assertEqual(first_tokens(self.loader(self.data("zero"))), plain)

    def test_adapters(self):
        data = self.data("hf", adapter="hf")
        inputs = next(iter(self.loader(data)))
        self.assertEqual(tuple(inputs["input_ids"].shape), (1, 64))
        self.assertEqual(data.state_dict()["step"], 0)
        own = next(iter(self.data("own", adapter=lambda batch: batch.samples.key)))
        self.assertIsInstance(own, list)
        share = next(iter(self.data("options", adapter="maxtext", adapter_options={"framework": "numpy"})))
        self.assertIsInstance(share["inputs"], numpy.ndarray)
        with self.assertRaisesRegex(packd.InvalidArgument, "unknown adapter 'nemo'"):
            self.data("hf", adapter="nemo")

    def test_state_resumes_behind_the_last_batch_yielded(self):
        whole = first_tokens(self.data("whole", rows=2, accum=2))
        data = self.data("state", rows=2, accum=2, prefetch=4)
        seen, states = [], []
        for batch in self.loader(data):
            seen.append(batch)
            states.append(data.state_dict())
            self.assertEqual(states[-1], batch.state)
            if len(seen) == 7:
                break
        self.assertEqual([(state["step"], state["micros"]) for state in states[:4]], [(-1, 1), (0, 0), (0, 1), (1, 0)])
        self.assertLess(len(pickle.dumps(states[-1])), 512)
        buffer = io.BytesIO()
        torch.save(states[-1], buffer)
        self.assertEqual(torch.load(io.BytesIO(buffer.getvalue())), states[-1])
        self.assertEqual(first_tokens(data), whole[7:])  # the same data set goes on
        self.assertEqual(first_tokens(data), [])
        for at in (1, 4, 7):
            again = self.data("state", rows=2, accum=2)
            again.load_state_dict(states[at - 1])
            self.assertEqual(first_tokens(again), whole[at:])
        data.commit()
        with packd.Job(self.server.address, job="state", rows=2, accum=2) as job:
            self.assertEqual(job.info["committed_step"], whole[-1][0])

    def test_another_world_with_the_same_steps(self):
        def samples(batches):
            steps = {}
            for batch in batches:
                table = batch.header["samples"]
                steps.setdefault(batch.step, []).extend(zip(table.seq.tolist(), table.part.tolist()))
            return {step: sorted(content) for step, content in steps.items()}

        whole = samples(self.data("one", rows=4))
        first = self.data("elastic", rows=4, world_token="a")
        seen = iter(first)
        got = samples([next(seen) for _ in range(3)])
        state = first.state_dict()
        seen.close()
        ranks = [self.data("elastic", dp_rank=rank, dp_size=2, rows=1, accum=2, world_token="b") for rank in range(2)]
        ends = []
        for rank in ranks:
            rank.load_state_dict(state)
            batches = list(rank)
            ends.append(batches[-1].step)
            for step, content in samples(batches).items():
                got[step] = sorted(got.get(step, []) + content)
        self.assertEqual(got, whole)
        self.assertEqual(ends[0], ends[1])
        bad = [(state | {"job": "x"}, "job 'x'"), (state | {"version": 9}, "version 9"), (state | {"step_packs": 6}, "6 packs.* = 4 here"),
               (state | {"micros": 1}, "within step 3")]
        for wrong, text in bad:
            with self.assertRaisesRegex(packd.Mismatch, text):
                ranks[0].load_state_dict(wrong)
        with self.assertRaises(packd.Mismatch):
            other = self.data("elastic", rows=4, world_token="c")
            other.load_state_dict(state | {"log_id": "0" * 32})
            next(iter(other))

    def test_ranks(self):
        self.assertEqual(packd.torch.data_rank(Mesh(dp_replicate=(1, 2), dp_shard=(2, 4), cp=(0, 2), tp=(1, 2))), (6, 8))
        self.assertEqual(packd.torch.data_rank(Mesh(pp=(1, 2), dp_shard=(3, 4))), (3, 4))
        self.assertEqual(packd.torch.data_rank(Mesh(data=(1, 2), tp=(0, 2)), dims=("data",)), (1, 2))
        with self.assertRaisesRegex(packd.InvalidArgument, "none of"):
            packd.torch.data_rank(Mesh(tp=(0, 8)))
        peers = [self.data("mesh", mesh=Mesh(dp_shard=(1, 2), tp=(tp, 2))) for tp in range(2)]
        self.assertEqual(*[first_tokens(peer) for peer in peers])
        for bad in (dict(dp_rank=1), dict(dp_size=2), dict(mesh=Mesh(dp_shard=(0, 1)), dp_rank=0, dp_size=1), dict(resume_step=3)):
            with self.assertRaises(packd.InvalidArgument):
                self.data("mesh", **bad)
        with self.assertRaisesRegex(packd.InvalidArgument, "dp_rank 2 of dp_size 2"):
            next(iter(self.data("mesh", dp_rank=2, dp_size=2)))

    def test_process_group(self):
        if not torch.distributed.is_available():
            self.skipTest("this torch has no torch.distributed")
        self.assertNotEqual(packd.torch.world_token(), packd.torch.world_token())
        with tempfile.TemporaryDirectory() as directory:
            torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/group", rank=0, world_size=1)
            try:
                data = self.data("group", world_token=packd.torch.world_token())
                self.assertEqual(next(iter(data)).header["dp_size"], 1)
            finally:
                torch.distributed.destroy_process_group()

    def test_pinned(self):
        data = self.data("pinned", pin_memory=True)
        if torch.cuda.is_available():
            batch = next(iter(data))
            self.assertTrue(batch["tokens"].is_pinned())
            self.assertIs(batch.pin_memory(), batch)
            return
        with self.assertRaisesRegex(packd.Unsupported, "no CUDA device"):
            next(iter(data))
        self.assertEqual(packd.torch.PinnedMemory().allocate(4096, 4096), 0)

    def test_batches_without_a_server(self):
        batch = packd.Batch.from_arrays({"tokens": numpy.ones((1, 4), "int32"), "half": numpy.array([0x3f80], "uint16"),
                                         "big": numpy.array([2 ** 64 - 1], "uint64")})
        batch.dtypes["half"] = "bfloat16"
        made = packd.torch.TensorBatch.of(batch)
        self.assertEqual((made["half"].dtype, made["half"].item()), (torch.bfloat16, 1.0))
        self.assertEqual(made.numpy()["half"].tolist(), [0x3f80])
        self.assertEqual(made.numpy()["big"].tolist(), [2 ** 64 - 1])
        made["tokens"][0, 0] = 7
        self.assertEqual(batch["tokens"][0, 0], 7)
        self.assertEqual(pickle.loads(pickle.dumps(made))["tokens"].tolist(), [[7, 1, 1, 1]])


def first_step(data, **more):
    """The first batch's step, or the error, of a DataLoader with workers."""
    try:
        return next(iter(torch.utils.data.DataLoader(data, batch_size=None, **more))).step
    except packd.Error as error:
        return f"{type(error).__name__} {error}"


def stateful(address, num_workers):
    """Batches before and behind a state taken from a StatefulDataLoader, which knows of workers what it has handed out."""
    loader = StatefulDataLoader(packd.torch.PackedDataset(address, job="stateful", rows=2), batch_size=None, num_workers=num_workers)
    batches = iter(loader)
    before = first_tokens([next(batches) for _ in range(5)])
    state = loader.state_dict()
    del batches
    loader = StatefulDataLoader(packd.torch.PackedDataset(address, job="stateful", rows=2), batch_size=None, num_workers=num_workers)
    loader.load_state_dict(state)
    return before + first_tokens(loader)


def in_workers(address):
    """Everything with workers, told as a dict. It runs in a process that has not used libpackd and lets DataLoader fork it."""
    found = {}
    data = packd.torch.PackedDataset(address, job="worker", rows=2)
    sums = []
    for batch in torch.utils.data.DataLoader(data, batch_size=None, num_workers=1):
        sums.append(batch["tokens"].sum().item())
    found["sums"], found["last"] = sums, (batch.state["step"], batch.step, batch.header["samples"][0].stream)
    try:
        data.state_dict()
    except packd.Mismatch as error:
        found["state"] = error.reason
    found["two"] = first_step(data, num_workers=2)
    found["pinned"] = first_step(packd.torch.PackedDataset(address, job="pinned", pin_memory=True), num_workers=1)
    if StatefulDataLoader:
        found["stateful"] = stateful(address, num_workers=1)
    data.commit(batch.step)  # the first use of libpackd here
    with packd.Job(address, job="worker", rows=2) as job:
        found["committed"] = job.info["committed_step"]
    found["used"] = first_step(data, num_workers=1)
    if os.environ.get("PACKD_FULL"):  # each spawned worker imports torch anew
        found["spawned"] = first_step(packd.torch.PackedDataset(address, job="spawn"), num_workers=1, multiprocessing_context="spawn")
    return found


def setUpModule():
    """Before this process uses libpackd itself, which no fork would survive."""
    if torch is None:
        return
    rows = "".join(f'{{"tokens": {list(range(1, n % 50 + 2))}}}\n' for n in range(100))
    WorkerTest.server = harness.Daemon(feeds=[FEED]).start()
    WorkerTest.server.packctl("push", "--stream", "s", "--end-feed", "-", stdin=rows)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, pickle.dumps(in_workers(WorkerTest.server.address)))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        WorkerTest.told = file.read()
    os.waitpid(child, 0)


@unittest.skipIf(torch is None, "torch is not installed")
class WorkerTest(unittest.TestCase):
    """What setUpModule has found."""

    @classmethod
    def setUpClass(cls):
        cls.found = pickle.loads(cls.told)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_one_worker(self):
        with packd.Job(self.server.address, job="plain", rows=2) as job:
            plain = [int(batch["tokens"].sum()) for batch in job]
        self.assertEqual(self.found["sums"], plain)
        last = len(plain) - 1
        self.assertEqual(self.found["last"], (last, last, "s"))
        self.assertEqual(self.found["state"], "STATE_IN_WORKER")
        self.assertEqual(self.found["committed"], last)

    @unittest.skipIf(StatefulDataLoader is None, "torchdata is not installed")
    def test_stateful_data_loader(self):
        with packd.Job(self.server.address, job="plain", rows=2, start="first") as job:
            plain = [(batch.step, batch.micro, int(batch["tokens"].sum())) for batch in job]
        self.assertEqual(self.found["stateful"], plain)
        self.assertEqual(stateful(self.server.address, num_workers=0), plain)

    def test_what_workers_cannot_do(self):
        self.assertIn("num_workers=2: each worker would be given the same", self.found["two"])
        self.assertIn("page-locked memory cannot be shared", self.found["pinned"])
        self.assertIn("libpackd was in use in the parent process", self.found["used"])
        self.assertEqual(self.found.get("spawned", 0), 0)


if __name__ == "__main__":
    unittest.main()
