"""Tests that pass leave no file behind; one that fails leaves its directory and says where."""

import os
import subprocess
import tempfile
import unittest

RUN_PYTHON = os.path.join("tests", "integration", "run_python.sh")
OF_C = os.path.join("tests", "unit", "reader_test")  # writes files; see scratch.h

WRITES = """
import os, sys, tempfile
open(os.path.join(tempfile.mkdtemp(), "file"), "w").close()
print(os.environ["TMPDIR"])
sys.exit(int(sys.argv[1]))
"""


class LitterTest(unittest.TestCase):
    def run_python(self, status):
        """The directory of a test that writes a file and ends with `status`, and what it said on stderr."""
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(WRITES)
            script.flush()
            done = subprocess.run([RUN_PYTHON, script.name, str(status)], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout.strip(), done.stderr

    def test_python(self):
        directory, said = self.run_python(0)
        self.assertFalse(os.path.exists(directory))
        self.assertEqual(said, "")

    def test_python_that_fails(self):
        directory, said = self.run_python(3)
        self.assertIn(directory, said)
        self.assertEqual(len(os.listdir(directory)), 1)
        subprocess.run(["rm", "-rf", directory], check=True)

    def test_python_has_room_for_socket_names(self):
        self.assertLess(len(os.path.join(self.run_python(0)[0], "packd-12345678", "packd.sock")), 64)

    def test_c(self):
        with tempfile.TemporaryDirectory() as directory:
            done = subprocess.run([OF_C], capture_output=True, text=True, env={**os.environ, "TEST_TMPDIR": directory}, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(os.listdir(directory), [])


if __name__ == "__main__":
    unittest.main()
