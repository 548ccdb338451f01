"""What a power cut leaves at any moment: the order of writes and syncs on the log's file is recorded, and for every sync the file is rebuilt as a
disk may hold it then: everything written before the last completed sync, and any part of what came later, torn at sectors or pages. It opens, holds
every sample acked by then, and verifies clean. With PACKD_FULL every sync is looked at, else as many as fit, drawn at random.

    PACKD_TEST_SEED     repeat one run
"""

import concurrent.futures
import os
import random
import struct
import unittest

import fault_support as support

EVENT = struct.Struct("<IIQ")
WRITE, WRITE_SYNCED, SYNC, ACKS = 1, 2, 3, 4
STATES = 60  # of the short form
TEARS = (0, 0, 512, 512, 4096)  # what a later write may be cut at; 0: it is there whole, or not


def read_trace(path):
    """[(type, offset, bytes)] in the order in which the calls returned."""
    with open(path, "rb") as file:
        data = file.read()
    events, at = [], 0
    while at < len(data):
        kind, size, offset = EVENT.unpack_from(data, at)
        at += EVENT.size
        events.append((kind, offset, data[at:at + size]))
        at += size
    return events


def apply(image, offset, data):
    if len(image) < offset + len(data):
        image.extend(bytes(offset + len(data) - len(image)))
    image[offset:offset + len(data)] = data


def apply_torn(image, rng, tear, offset, data):
    """Some of the sectors that a write touches."""
    at = 0
    while at < len(data):
        end = min(len(data), (offset + at) // tear * tear + tear - offset)
        if rng.random() < 0.5:
            apply(image, offset + at, data[at:end])
        at = end


class Disk:
    """The file between two syncs: what is safe, what is on its way, what was acked."""

    def __init__(self):
        self.safe, self.pending, self.acks = bytearray(), [], b""

    def take(self, kind, offset, data):
        if kind == WRITE:
            self.pending.append((offset, data))
        elif kind == WRITE_SYNCED:
            apply(self.safe, offset, data)
        elif kind == SYNC:
            for write in self.pending:
                apply(self.safe, *write)
            self.pending = []
        else:
            self.acks += data

    def states(self, rng, coming):
        """Images as a power cut may leave the file now, while `coming` is being written too."""
        later = self.pending + coming
        yield "nothing later", bytes(self.safe)
        for tear in TEARS if later else ():
            image = bytearray(self.safe)
            for offset, data in later:
                if tear:
                    apply_torn(image, rng, tear, offset, data)
                elif rng.random() < 0.6:
                    apply(image, offset, data)
            yield f"later writes torn at {tear}" if tear else "some later writes", bytes(image)


def crash_points(events, rng):
    """[(name, image, acks)] around every sync but the first, before which there is no log to lose."""
    disk, points, syncs = Disk(), [], 0
    for i, (kind, offset, data) in enumerate(events):
        if kind in (SYNC, WRITE_SYNCED) and syncs > 0:
            coming = [(offset, data)] if kind == WRITE_SYNCED else []
            points += [(f"event {i}: {name}", image, disk.acks) for name, image in disk.states(rng, coming)]
        disk.take(kind, offset, data)
        syncs += kind == SYNC
    points.append(("the end", bytes(disk.safe), disk.acks))
    return points


def check_state(image, acks):
    with support.Scratch() as directory:
        with open(os.path.join(directory, "log", "data.mdb"), "wb") as file:
            file.write(image)
        with open(os.path.join(directory, "acks"), "wb") as file:
            file.write(acks)
        support.judge(directory)


class Order(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if support.sanitized():
            print("SKIP: calls cannot be recorded in a sanitizer build", flush=True)
            raise unittest.SkipTest("sanitizer build")

    def record(self):
        with support.Scratch() as directory:
            trace = os.path.join(directory, "trace")
            done = support.driver("run", directory, trace=trace)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(os.path.join(directory, "log", "data.mdb"), "rb") as file:
                return read_trace(trace), file.read()

    def test_every_sync(self):
        rng = random.Random(support.SEED)
        events, data = self.record()
        disk = Disk()
        for event in events:
            disk.take(*event)
        self.assertEqual((disk.pending, bytes(disk.safe)), ([], data), "the trace does not rebuild the file")
        self.assertIn(b"commit", disk.acks)
        points = crash_points(events, rng)
        total = len(points)
        if not support.FULL:
            points = rng.sample(points, STATES)
        print(f"seed {support.SEED}, {len(events)} events, {total} states, {len(points)} looked at", flush=True)
        failures = []
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for name, run in [(point[0], pool.submit(check_state, *point[1:])) for point in points]:
                try:
                    run.result()
                except AssertionError as failure:
                    failures.append(f"{name}: {failure}")
        self.assertEqual(failures, [], "\n".join(failures))

    def test_a_missing_sync_is_found(self):
        """The same with the syncs left out of the trace: the check must see that samples are lost."""
        rng = random.Random(support.SEED)
        events, _ = self.record()
        unsynced = [(WRITE if kind == WRITE_SYNCED else kind, offset, data) for i, (kind, offset, data) in enumerate(events)
                    if kind != SYNC or i < 4]
        disk = Disk()
        for event in unsynced:
            disk.take(*event)
        lost = 0
        for _, image in list(disk.states(rng, [])):
            try:
                check_state(image, disk.acks)
            except AssertionError:
                lost += 1
        self.assertGreater(lost, 0)


if __name__ == "__main__":
    unittest.main()
