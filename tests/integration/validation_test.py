"""A batch that fails its checks is never served: faults are planted between assembly and check by a binary made for it.

Each fault is planted once (the batch is built again, and what is served equals an undisturbed run byte by byte) and always (the feed
stops, others go on, and what is needed to look into it is kept). The attention faults are planted a third time with the structural
check left out, so that the probe alone stands between them and a trainer.
"""

import json
import os
import re
import struct
import subprocess
import unittest

import grpc

import harness
import peer

FAULTY = os.path.join(harness.TOP, "server", "packd_faulty")
STEPS = 8
# Pairs that fill a row and pairs that leave some padding: together they have a place for every fault.
LENGTHS = [32 if i % 3 == 0 else 22 + i % 7 for i in range(80)]
SAMPLES = [[1 + (i * 31 + j * 7) % 900 for j in range(n)] for i, n in enumerate(LENGTHS)]
FEEDS = [{"name": name, "seq_len": 64, "window": 8, "vocab_size": 1000} for name in ("default", "other")]
WORLD = {"dp_size": 1, "rows": 2, "accum": 1}


def names(path, pattern):
    with open(path) as file:
        return re.findall(pattern, file.read(), re.M)


ATTENTION = names("gpu/probe_cases.h", r'X\(PD_FAULT_\w+, "([^"]+)"')
OTHERS = names("server/fault.c", r'^    \{"([^"]+)", \w+\}')
# Wrong in every array alike: only a comparison with the log can know.
CONSISTENT = "a length wrong in all arrays alike"
# The rule that finds each fault.
RULES = {
    "boundary off by one": "seq_lens",
    "two segments merged": "shape",
    "cu_seqlens one token short": "cu_seqlens",
    "cu_seqlens starts one token late": "cu_seqlens",
    "positions run on into a segment": "positions",
    "two positions swapped": "positions",
    "a row treated as one sequence": "shape",
    "the start of a row missing from cu_seqlens": "shape",
    "padding joined to a segment": "shape",
    "a boundary inside a segment": "seq_lens",
    "one token with another segment's id": "segment_ids",
    "cu_seqlens runs backwards": "cu_seqlens",
    "cu_seqlens past the batch": "cu_seqlens",
    "seq_lens one token short": "seq_lens",
    "a length wrong in all arrays alike": "plan",
    "token changed": "digest",
    "label across a boundary": "labels",
    "label lost": "plan",
    "padding with a loss weight": "padding",
    "padding that is not pad_id": "padding",
    "wrong total of tokens": "totals",
    "wrong total of targets": "totals",
    "samples swapped in sample_index": "sample_index",
    "max_seqlen too small": "max_seqlen",
    "array past the payload": "shape",
}


def faulty(fault=None, step=0, times=1, unchecked=False, backend="cpu"):
    environment = {"PACKD_TEST_FAULT_STEP": str(step), "PACKD_TEST_FAULT_TIMES": str(times)}
    if fault:
        environment["PACKD_TEST_FAULT"] = fault
    if unchecked:
        environment["PACKD_TEST_FAULT_UNCHECKED"] = "1"
    return harness.Daemon(feeds=FEEDS, environment=environment, program=FAULTY,
                          extra={"validate": {"backend": backend, "cpu_share": 1}})


def push_all(packd, feed="default"):
    push = peer.Push(packd.address, stream="of-" + feed, feed=feed)
    push.welcome()
    push.block(SAMPLES)
    push.wait_durable(len(SAMPLES))
    push.close()


def fetch_from(packd, step, feed="default"):
    return peer.Fetch(packd.address, peer.open_job(packd.address, feed=feed, **WORLD), feed=feed, first_step=step)


def served(packd, feed="default"):
    """[(header, payload)] of the first steps, and how often each batch was built."""
    fetch = fetch_from(packd, 0, feed)
    batches = [fetch.next() for _ in range(STEPS)]
    fetch.close()
    return [(b.header_bytes, b.payload) for b in batches], batches


def violations(packd):
    """{check: count} of /metrics, where it is not 0."""
    found = {}
    for name, value in packd.metrics().items():
        match = re.fullmatch(r'packd_validation_violations_total\{check="(\w+)"\}', name)
        if match and value:
            found[match[1]] = int(value)
    return found


def records(path):
    """[(first, second, bytes)] of a repro's file."""
    with open(path, "rb") as file:
        data = file.read()
    out, at = [], 0
    while at < len(data):
        first, second, size = struct.unpack_from("<QQQ", data, at)
        out.append((first, second, data[at + 24:at + 24 + size]))
        at += 24 + size
    return out


class ValidationTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with faulty() as packd:
            push_all(packd)
            cls.undisturbed, batches = served(packd)
            assert [b.delivery.builds for b in batches] == [1] * STEPS and violations(packd) == {}
        # The step to hurt: two samples in each row, the first row full and the second not.
        cls.hurt = next(step for step in range(1, STEPS) if batches[step]["segment_ids"].max(axis=1).tolist() == [2, 2]
                        and (batches[step]["segment_ids"] == 0).any(axis=1).tolist() == [False, True])

    def planted(self, packd):
        self.assertIn("fault_planted", packd.log())
        self.assertNotIn("fault_not_planted", packd.log())

    def once(self, fault, unchecked=False):
        with self.subTest(fault, unchecked=unchecked), faulty(fault, self.hurt, unchecked=unchecked) as packd:
            push_all(packd)
            same, batches = served(packd)
            self.planted(packd)
            self.assertEqual(same, self.undisturbed)
            self.assertEqual([b.delivery.builds for b in batches], [2 if step == self.hurt else 1 for step in range(STEPS)])
            self.assertEqual(sum(violations(packd).values()), 1)
            self.assertEqual(packd.metrics()["packd_batches_rebuilt_total"], 1)
            status = packd.status()
            self.assertEqual((status["validator"]["rebuilt"], status["validator"]["repro"]), (1, ""))
            self.assertEqual(packd.http("/readyz")[0], 200)

    def halted(self, packd, step):
        """Asks for the step: the call fails and has brought no batch. Its text."""
        fetch = fetch_from(packd, step)
        with self.assertRaises(grpc.RpcError) as caught:
            fetch.next()
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DATA_LOSS)
        detail = peer.error_detail(caught.exception)
        self.assertIn(detail.reason, ("HALTED", "VIOLATION"))
        fetch.close()
        return detail.text

    def check_repro(self, path, kind, text):
        with open(os.path.join(path, "finding.json")) as file:
            finding = json.load(file)
        self.assertEqual((finding["feed"], finding["job"], finding["step"], finding["micro"], finding["dp_rank"]),
                         ("default", "train", self.hurt, 0, 0))
        self.assertEqual((finding["kind"], finding["records_left_out"]), (kind, 0))
        self.assertIn(finding["text"], text)
        plan = records(os.path.join(path, "plan.bin"))
        self.assertEqual([number for number, _, _ in plan], finding["packs"])
        self.assertEqual(finding["packs"], [2 * self.hurt, 2 * self.hurt + 1])
        self.assertEqual(len(records(os.path.join(path, "heads.bin"))), 1)
        bodies = records(os.path.join(path, "bodies.bin"))
        self.assertEqual(len(bodies), 4)
        for _, index, body in bodies:
            self.assertEqual(body, struct.pack(f"<{LENGTHS[index]}i", *SAMPLES[index]))

    def always(self, fault, unchecked=False, backend="cpu"):
        """Returns the kind that metrics named."""
        with self.subTest(fault, unchecked=unchecked), faulty(fault, self.hurt, 1 << 30, unchecked, backend) as packd:
            push_all(packd)
            self.halted(packd, self.hurt)
            text = self.halted(packd, self.hurt)
            self.planted(packd)
            counted = violations(packd)
            self.assertEqual(list(counted.values()), [2], counted)
            self.assertEqual(packd.http("/readyz")[0], 503)
            status = packd.status()
            feed = {f["name"]: f for f in status["feeds"]}
            self.assertEqual((status["validator"]["violations"], feed["default"]["halted"], feed["other"].get("halted", "")),
                             (1, text, ""))
            self.check_repro(status["validator"]["repro"], next(iter(counted)), text)
            self.assertIn(f'repro="{status["validator"]["repro"]}"', packd.log())
            self.assertEqual(packd.metrics()['packd_serve_batches_total{feed="default"}'], 0)
            push_all(packd, "other")  # the other feed goes on
            self.assertEqual([payload for _, payload in served(packd, "other")[0]],
                             [payload for _, payload in self.undisturbed])
            return next(iter(counted))
        return None

    def test_all_are_known(self):
        self.assertEqual(sorted(ATTENTION + OTHERS), sorted(RULES))
        self.assertIn(CONSISTENT, ATTENTION)

    def test_once(self):
        for fault in ATTENTION + OTHERS:
            self.once(fault)

    def test_always(self):
        for fault in ATTENTION + OTHERS:
            kind = self.always(fault, backend="off")  # the structural check alone
            self.assertEqual(kind, RULES[fault], fault)

    def test_probe_alone(self):
        for fault in ATTENTION:
            if fault == CONSISTENT:
                continue
            kind = self.always(fault, unchecked=True)
            self.assertTrue(kind and kind.startswith("probe_"), (fault, kind))

    def test_probe_alone_once(self):
        for fault in ("boundary off by one", "two positions swapped"):
            self.once(fault, unchecked=True)

    def test_unknown_fault(self):
        with self.assertRaises(AssertionError) as caught:
            faulty("no such fault").start()
        self.assertIn('no fault "no such fault"', str(caught.exception))

    def test_packctl_selftest(self):
        """Needs no server. Every fault of the probe's is planted, and found."""
        def run(*arguments):
            done = subprocess.run([harness.PACKCTL, "selftest", *arguments], capture_output=True, text=True, timeout=harness.DEADLINE_S)
            return done.returncode, done.stdout, done.stderr

        code, out, _ = run("--backend", "cpu", "--json")
        report = json.loads(out)
        self.assertEqual((code, report["passed"], report["backend"], report["failure"]), (0, True, "cpu", ""))
        cases = {case["name"]: case for case in report["cases"]}
        self.assertEqual(sorted(cases), ["clean", "dense", "faults", "interference"])
        self.assertEqual(cases["faults"]["done"], 2 * len(ATTENTION))
        for case in cases.values():
            self.assertEqual(case["good"], case["done"])
            self.assertGreater(case["done"], 0)
        code, out, _ = run()
        self.assertEqual(code, 0)
        self.assertIn("passed in", out)
        code, out, err = run("--backend", "cuda")
        self.assertTrue(code == 0 and "backend cuda" in out or code == 1 and "cuda" in err.lower(), (code, out, err))
        self.assertEqual(run("--backend", "off")[0], 2)

    def test_selftest_of_the_server(self):
        with faulty() as packd:
            push_all(packd)
            self.assertEqual(served(packd)[0], self.undisturbed)  # after the first self-test
            with peer.channel(packd.address) as channel:
                admin = peer.rpc.AdminStub(channel)
                calls = [admin.SelfTest.future(peer.pb.SelfTestRequest(), timeout=peer.CALL_S) for _ in range(4)]
                batches, _ = served(packd)  # between them
                answers = []
                for call in calls:
                    try:
                        answers.append(call.result())
                    except grpc.RpcError as error:
                        self.assertEqual(peer.error_detail(error).reason, "SELFTEST_RUNNING")
                self.assertTrue(answers)
                for answer in answers:
                    self.assertTrue(answer.passed)
                    self.assertEqual((answer.backend, answer.device), ("cpu", packd.status()["validator"]["device"]))
                    self.assertEqual([(case.name, case.passed) for case in answer.cases],
                                     [(name, True) for name in ("dense", "interference", "faults", "clean")])
                    self.assertTrue(all(case.micros > 0 for case in answer.cases), answer)
                    self.assertEqual(answer.cases[2].text, f"{2 * len(ATTENTION)} of {2 * len(ATTENTION)}")
                with self.assertRaises(grpc.RpcError) as caught:
                    admin.SelfTest(peer.pb.SelfTestRequest(backend="cuda"), timeout=peer.CALL_S)
                self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
            self.assertEqual(batches, self.undisturbed)
        with faulty(backend="off") as packd, peer.channel(packd.address) as channel:
            with self.assertRaises(grpc.RpcError) as caught:
                peer.rpc.AdminStub(channel).SelfTest(peer.pb.SelfTestRequest(), timeout=peer.CALL_S)
            self.assertIn(peer.error_detail(caught.exception).reason, ("PROBE_OFF", "STARTING"))

    def test_repros_are_bounded(self):
        packd = faulty("two segments merged", self.hurt, 1 << 30)
        for i in range(16):
            os.makedirs(os.path.join(packd.directory, "data", "repros", f"old{i}"))
        with packd:
            push_all(packd)
            self.halted(packd, self.hurt)
            self.assertIn("repro_not_saved", packd.log())
            self.assertEqual(packd.status()["validator"]["repro"], "")
            self.assertEqual(len(os.listdir(os.path.join(packd.directory, "data", "repros"))), 16)

    def test_restart_after_a_halt(self):
        """The halt lasts as long as the process: a daemon without the fault serves the same log, the batch included."""
        packd = faulty("two segments merged", self.hurt, 1 << 30).start()
        push_all(packd)
        self.halted(packd, self.hurt)
        packd.stop()
        healthy = harness.Daemon(feeds=FEEDS, directory=packd.directory)
        with healthy:
            self.assertEqual(served(healthy)[0], self.undisturbed)
            self.assertTrue(os.path.isdir(os.path.join(packd.directory, "data", "repros")))


if __name__ == "__main__":
    unittest.main()
