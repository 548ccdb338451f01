"""packd.readers_lerobot: episodes written here in LeRobot's layout become samples, and come back from the daemon as pushed."""

import hashlib
import json
import os
import tempfile
import unittest
import unittest.mock
import weakref

import numpy

import harness
import packd
from packd import readers_lerobot

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    pyarrow = None
    print("SKIP: readers_lerobot_test: LeRobot's episodes: pyarrow is not installed")

LENGTHS, CHUNK, TASKS = (5, 3), 4, ["open the box", "close it"]
VIDEO = "videos/chunk-000/observation.images.wrist/episode_{:06d}.mp4"


def image(episode, frame):
    """Stands for a PNG; nobody looks inside."""
    return f"png {episode} {frame}".encode() * (1 + frame)


def rows(episode):
    for frame in range(LENGTHS[episode]):
        yield {"action": [episode + frame / 10, -1.0], "observation.state": [float(frame)] * 3, "episode_index": episode, "frame_index": frame,
               "task_index": episode, "timestamp": frame / 10, "observation.images.base": {"bytes": image(episode, frame), "path": None}}


@unittest.skipIf(pyarrow is None, "pyarrow is not installed")
class LeRobotTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name
        self.info = {"codebase_version": "v2.1", "chunks_size": 1000, "fps": 10,
                     "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
                     "features": {"action": {"dtype": "float32", "shape": [2]},
                                  "observation.images.wrist": {"dtype": "video", "shape": [3, 56, 90]},
                                  "observation.images.base": {"dtype": "image", "shape": [60, 84, 3], "names": ["height", "width", "channel"]}}}
        self.write("meta/info.json", json.dumps(self.info).encode())
        self.write("meta/tasks.jsonl", b"\n".join(json.dumps({"task_index": n, "task": text}).encode() for n, text in enumerate(TASKS)))
        for episode in range(2):
            self.write(VIDEO.format(episode), b"mp4 %d" % episode)
            self.table(f"data/chunk-000/episode_{episode:06d}.parquet", list(rows(episode)))

    def write(self, name, data):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)

    def table(self, name, records):
        self.write(name, b"")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), os.path.join(self.root, name))

    def read(self, **options):
        return list(readers_lerobot.frames(self.root, **{"chunk": CHUNK, **options}))

    def test_samples(self):
        samples = self.read(before=[300], after=[301])
        places = [(episode, frame) for episode in range(2) for frame in range(LENGTHS[episode])]
        self.assertEqual([sample["key"] for sample in samples], [f"episode-{e}/frame-{f}" for e, f in places])
        for sample, (episode, frame) in zip(samples, places):
            base, wrist = sample["spans"]  # 60 x 84 pixels: 2 x 3 tokens; 56 x 90: as many
            self.assertEqual(base, packd.Span(offset=1, length=6, view="base", grid=(1, 4, 6)))
            self.assertEqual(wrist, packd.Span(offset=9, length=6, view="wrist", grid=(1, 4, 6)))
            media = [300, *[256] * 6, 301]
            self.assertEqual(sample["tokens"].tolist(), media * 2 + list(TASKS[episode].encode()))
            self.assertEqual((sample["group"], sample["merge"]), (f"episode-{episode}", 4))
            values = {name: tensor.values for name, tensor in sample["tensors"].items()}
            taken = [min(frame + step, LENGTHS[episode] - 1) for step in range(CHUNK)]
            numpy.testing.assert_array_equal(values["action"], numpy.array([[episode + t / 10, -1] for t in taken], "float32"))
            self.assertEqual(values["action_is_pad"].tolist(), [frame + step >= LENGTHS[episode] for step in range(CHUNK)])
            self.assertEqual(values["state"].tolist(), [frame] * 3)
            self.assertEqual(values["frame"].tobytes(), image(episode, frame))
            self.assertEqual(values["frame_ref"].tobytes().decode(), f"{VIDEO.format(episode)}#t={frame / 10:.6f}")
            self.assertEqual(values["frame_ref_sha256"].tobytes(), hashlib.sha256(b"mp4 %d" % episode).digest())

    def test_options(self):
        self.assertEqual([sample["key"][-7:] for sample in self.read(every=2)], ["frame-0", "frame-2", "frame-4", "frame-0", "frame-2"])
        text = self.read(cameras=[], tokenize=lambda text: [len(text)])
        self.assertEqual((text[0]["tokens"].tolist(), text[0]["spans"]), ([len(TASKS[0])], []))
        seen = []

        def patches(camera, content):
            seen.append((camera, content))
            return numpy.full((4, 3), len(seen), "float32"), (1, 2, 2)
        sample = self.read(cameras=["wrist", "base"], patches=patches)[0]
        self.assertEqual(seen[:2], [("wrist", VIDEO.format(0).encode() + b"#t=0.000000"), ("base", image(0, 0))])
        self.assertEqual([span.view for span in sample["spans"]], ["wrist", "base"])
        self.assertEqual(sample["tensors"]["pixel_values"].values[:, 0].tolist(), [1] * 4 + [2] * 4)
        self.assertNotIn("frame", sample["tensors"])

    def test_version_3(self):
        """Several episodes in a file, tasks in a table; images are read, videos refused by name."""
        before = self.read(cameras=["base"])
        for episode in range(2):
            os.unlink(os.path.join(self.root, f"data/chunk-000/episode_{episode:06d}.parquet"))
        os.unlink(os.path.join(self.root, "meta/tasks.jsonl"))
        self.table("data/chunk-000/file-000.parquet", [*rows(0), *rows(1)])
        self.table("meta/tasks.parquet", [{"task_index": n, "__index_level_0__": text} for n, text in enumerate(TASKS)])
        self.info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        self.write("meta/info.json", json.dumps(self.info).encode())
        after = self.read(cameras=["base"])
        self.assertEqual([(s["key"], s["tokens"].tolist()) for s in after], [(s["key"], s["tokens"].tolist()) for s in before])
        for one, other in zip(before, after):
            numpy.testing.assert_array_equal(one["tensors"]["action"].values, other["tensors"]["action"].values)
        with self.assertRaisesRegex(packd.Unsupported, "only version 2 is read; choose cameras="):
            self.read()

    def test_refused(self):
        for options, said in (({"cameras": ["top"]}, "has no camera top; it has base, wrist"), ({"every": 0}, "every=0"),
                              ({"grid": lambda height, width: (1, 3, 3)}, r"camera base: a grid of \(1, 3, 3\) has 9 patches.*merge = 4")):
            with self.subTest(said), self.assertRaisesRegex(packd.InvalidArgument, said):
                self.read(**options)
        os.unlink(os.path.join(self.root, VIDEO.format(1)))
        with self.assertRaisesRegex(packd.InvalidArgument, "episode_000001.mp4"):
            self.read()
        self.write("meta/tasks.jsonl", b'{"task_index": 0, "task": "x"}')
        with self.assertRaisesRegex(packd.InvalidArgument, "episode-1/frame-0 has task 1, which meta/tasks does not"):
            self.read(cameras=["base"])
        self.table("data/chunk-000/episode_000000.parquet", [{"episode_index": 0}])
        with self.assertRaisesRegex(packd.InvalidArgument, "episode_000000.parquet: no column action, frame_index, task_index, observation.images.base"):
            self.read(cameras=["base"])
        with self.assertRaisesRegex(packd.InvalidArgument, "not a data set in LeRobot's layout: meta/info.json"):
            list(readers_lerobot.frames(os.path.join(self.root, "data")))

    def refused(self, said, **options):
        with self.subTest(said), self.assertRaisesRegex(packd.InvalidArgument, said):
            self.read(**options)

    def test_files_that_the_data_set_names(self):
        """Paths of images: below the directory, through links there too, and nowhere else."""
        outside = tempfile.TemporaryDirectory()
        self.addCleanup(outside.cleanup)
        secret = os.path.join(outside.name, "secret")
        with open(secret, "wb") as file:
            file.write(b"not the data set's")
        self.write("images/here", b"png here")
        os.symlink(secret, os.path.join(self.root, "images/linked"))
        table = "data/chunk-000/episode_000000.parquet"

        def name(path):
            self.table(table, [{**row, "observation.images.base": {"bytes": None, "path": path}} for row in rows(0)])
        for path, content in (("images/here", b"png here"), ("./images/linked", b"not the data set's")):
            name(path)
            self.assertEqual(self.read(cameras=["base"])[0]["tensors"]["frame"].values.tobytes(), content)
        for path in (secret, "../" + os.path.relpath(secret, os.path.dirname(self.root)), "images/../../x", "..", "", None):
            name(path)
            self.refused("episode-0/frame-0: observation.images.base: .*: expected a path below", cameras=["base"])
        for path, said in (("images/none", "No such file"), ("images", "directory"), ("images/a\0b", "null byte")):
            name(path)
            self.refused(said, cameras=["base"])

    def test_descriptions_that_make_no_sense(self):
        before = json.dumps(self.info)

        def write(info):
            self.write("meta/info.json", json.dumps(info).encode())
        for path, said in (("/etc/{episode_index}", "expected a path below"), ("videos/../../{episode_index}", "expected a path below"),
                           ("{episode_index}/{chunk}", "KeyError"), ("{episode_index.x}", "AttributeError"), ("{episode_index:q}", "ValueError"),
                           ("{episode_index}/{}", "IndexError")):
            write({**self.info, "video_path": path})
            self.refused(f"video_path .*{said}")
        write({**self.info, "chunks_size": 0})
        self.refused("video_path .*ZeroDivisionError")
        for shape in ([], [3], [3, 56], [3, 56, 90, 1], [3, 0, 90], [3, 56.5, 90], {"height": 56}, 56, None):
            info = json.loads(before)
            info["features"]["observation.images.wrist"]["shape"] = shape
            write(info)
            self.refused("camera wrist has shape .*: expected height, width and channels")
        info = json.loads(before)
        info["features"]["observation.images.base"] |= {"names": ["height", "width", "channel", "more"]}
        write(info)
        self.assertEqual(self.read()[0]["spans"][0].grid, (1, 4, 6))
        for tasks in (b'{"task_index": 0}', b"{", b"[]", b"7"):
            self.write("meta/tasks.jsonl", tasks)
            self.refused("meta/tasks: ")

    def test_nothing_of_a_data_set_is_kept(self):
        made = []
        kept = readers_lerobot._DataSet

        def noted(*arguments):
            data = kept(*arguments)
            made.append(weakref.ref(data))
            return data
        with unittest.mock.patch.object(readers_lerobot, "_DataSet", noted):
            self.read()
        self.assertEqual([data() for data in made], [None])

    def test_through_the_daemon(self):
        pushed = self.read()
        with harness.Daemon(feeds=[{"name": "default", "seq_len": 64, "media_tokens": [256], "positions": "mrope"}]) as server:
            with packd.Producer(server.address, stream="robot", source="robot") as producer:
                self.assertEqual(producer.push(pushed), sum(LENGTHS))
                producer.end_feed()
            with packd.Job(server.address, job="j", rows=2) as job:
                batches = [batch.copy() for batch in job]
        count = 0
        for batch in batches:
            for row, sample in enumerate(batch.samples):
                tensors = pushed[sample.seq]["tensors"]
                self.assertEqual(sample.key.decode(), pushed[sample.seq]["key"])
                for name in ("action", "action_is_pad", "state"):
                    numpy.testing.assert_array_equal(batch[name][row], tensors[name].values)
                for name in ("frame", "frame_ref"):
                    (run,) = numpy.flatnonzero(batch[f"{name}_sample_index"] == row)
                    begin, end = batch[f"{name}_cu_seqlens"][run:run + 2]
                    numpy.testing.assert_array_equal(batch[name][begin:end], tensors[name].values)
                count += 1
        self.assertEqual(count, sum(LENGTHS))


@unittest.skipIf(pyarrow is not None, "pyarrow is installed")
class WithoutPyarrowTest(unittest.TestCase):
    def test_refused(self):
        with self.assertRaisesRegex(packd.Unsupported, "pip install pyarrow"):
            next(readers_lerobot.frames("anywhere"))


if __name__ == "__main__":
    unittest.main()
