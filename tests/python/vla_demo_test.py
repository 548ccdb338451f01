"""demo.sh --vla behind its build: every sample comes back from each feed, and the table says what the JSON says."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import harness

TITLES = {"padded": "padded", "packed": "packed", "pruned": "packed + pruned"}


class VlaDemoTest(unittest.TestCase):
    def setUp(self):
        """The demo looks for what it needs as in a built source tree: one of links."""
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.top = directory.name
        for name, target in (("bazel-bin/server", "server"), ("bazel-bin/client", "client"), ("client", "client"), ("tools", "tools")):
            path = os.path.join(self.top, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(os.path.join(harness.TOP, target), path)

    def test_result_and_table(self):
        done = subprocess.run([sys.executable, "-B", os.path.join(self.top, "tools", "demo_vla.py"), "--vla", "--samples", "60", "--json"],
                              capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.counts(result)
        sys.path.append(os.path.join(self.top, "tools"))
        import demo_vla
        self.table(demo_vla.table(result).splitlines())
        self.assertIn("torch is not installed", demo_vla.table(result | {"measured": False}))

    def counts(self, result):
        modes = result["modes"]
        self.assertEqual(list(modes), list(TITLES))
        for mode in modes.values():
            self.assertTrue(mode["exactly_once"])
            self.assertGreater(mode["step_cpu_seconds"], 0)
        padded, packed, pruned = modes.values()
        self.assertEqual((packed["tokens"], packed["patches"]), (padded["tokens"], padded["patches"]))
        self.assertLess(pruned["tokens"], packed["tokens"])
        self.assertLess(pruned["patches"], packed["patches"])
        self.assertLess(packed["padding"], 0.1)
        self.assertGreater(padded["padding"], 0.3)
        self.assertEqual(padded["rows"] * padded["width"], packed["rows"] * packed["width"])
        self.assertGreater(pruned["predicted_speedup"], packed["predicted_speedup"])
        self.assertGreater(packed["predicted_speedup"], 1.2)
        self.assertGreater(result["attention_saved_by_pruning"], 0)

    def table(self, lines):
        head = next(line for line in lines if line.split()[:1] == ["padded"])
        self.assertEqual([title for title in TITLES.values() if title in head], list(TITLES.values()))
        cells = {line[2:24].strip(): line[24:].split() for line in lines if len(line) > 60}
        self.assertEqual(cells["samples"], ["60"] * 3)
        self.assertEqual(lines.count("  " + " " * 22 + "         each once" * 3), 1)
        self.assertEqual(cells["predicted, by sample"][:2], ["1.00", "x"])
        self.assertIn("measured, by sample", cells)


if __name__ == "__main__":
    unittest.main()
