"""The Python package's other tests once more, under the current PyTorch, JAX, NumPy and pyarrow of PyPI instead of Debian's.

Only in the long form (PACKD_FULL), with $PACKD_TORCH_PYTHON, which test.sh --full sets to the environment that tools/setup.sh makes.
"""

import os
import re
import subprocess
import unittest

PYTHON = os.environ.get("PACKD_TORCH_PYTHON", "")
TESTS = ("batch_test", "testing_test", "producer_test", "job_test", "torch_test", "readers_test", "readme_test", "adapters_test", "verify_test")
MISSING = ("for the long form (PACKD_FULL)" if not os.environ.get("PACKD_FULL") else
           None if os.path.exists(PYTHON) else "PACKD_TORCH_PYTHON names no interpreter")
if MISSING:
    print(f"SKIP: current_test: {MISSING}")


@unittest.skipIf(MISSING, MISSING)
class CurrentTest(unittest.TestCase):
    def test_all(self):
        for name in TESTS:
            with self.subTest(name):
                done = subprocess.run([PYTHON, "-B", f"tests/python/{name}.py"], capture_output=True, text=True, timeout=300)
                text = done.stdout + done.stderr
                self.assertEqual(done.returncode, 0, text)
                count, tail = re.search(r"^Ran (\d+) tests? in .*\n+(OK.*)", text, re.M).groups()
                print(f"{name}: {count} tests, {tail}", *re.findall(r"^SKIP: .*", text, re.M), sep="\n   ")


if __name__ == "__main__":
    unittest.main()
