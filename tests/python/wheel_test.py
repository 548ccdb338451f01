"""The wheel: one command builds it, and what is installed from it needs nothing of the source tree."""

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import harness

MISSING = [name for name in ("pip", "setuptools", "wheel") if importlib.util.find_spec(name) is None]
if MISSING:
    print(f"SKIP: wheel_test: {', '.join(MISSING)} missing")


@unittest.skipIf(MISSING, f"{MISSING} missing")
class WheelTest(unittest.TestCase):
    def test_build_install_use(self):
        with tempfile.TemporaryDirectory() as top, harness.Daemon() as server:
            for name in ("client/python", "client/include"):  # a tree that may be written to
                shutil.copytree(name, os.path.join(top, name), ignore=shutil.ignore_patterns("__pycache__"))
            clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            build = subprocess.run([os.path.join(top, "client/python/build_wheel.sh"), "--out", os.path.join(top, "dist")], text=True, timeout=120,
                                   env=clean | {"PACKD_LIBRARY": os.path.abspath("client/libpackd.so")}, capture_output=True)
            self.assertEqual(build.returncode, 0, build.stdout + build.stderr)
            wheel, = glob.glob(os.path.join(top, "dist", "*.whl"))
            self.assertEqual(build.stdout.strip(), wheel)
            self.assertIn("-py3-none-linux_", wheel)
            names = zipfile.ZipFile(wheel).namelist()
            for name in ("packd/libpackd.so", "packd/packd.h", "packd/torch.py", "packd/adapters/hf.py", "packd/verify/__init__.py"):
                self.assertIn(name, names)
            self.assertFalse(os.path.exists(os.path.join(top, "client/python/build")))
            shutil.rmtree(os.path.join(top, "client"))
            site = os.path.join(top, "site")
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, wheel], check=True,
                           timeout=120, env=clean, capture_output=True)
            script = ("import packd, sys\n"
                      "with packd.Producer(sys.argv[1], stream='s') as producer:\n"
                      "    producer.put([1, 2, 3]); producer.end_feed()\n"
                      "with packd.Job(sys.argv[1], job='j') as job:\n"
                      "    print(job.fetch()['tokens'][0, :4].tolist())\n"
                      "print([line.split()[-1] for line in open('/proc/self/maps') if 'libpackd' in line][0])\n")
            used = subprocess.run([sys.executable, "-c", script, server.address], cwd=top, env=clean | {"PYTHONPATH": site}, text=True, timeout=120,
                                  capture_output=True)
            self.assertEqual(used.stdout.split("\n")[:2], ["[1, 2, 3, 0]", os.path.join(site, "packd", "libpackd.so")], used.stderr)

    def test_the_library_is_looked_for_and_named(self):
        run = lambda **more: subprocess.run([sys.executable, "-c", "import packd; packd.Job('127.0.0.1:1', job='j', timeout=0.1)"], text=True,
                                            capture_output=True, env=os.environ | more, timeout=60)
        self.assertIn("packd.errors.Timeout", run(PACKD_LIBRARY=os.path.abspath("client/libpackd.so")).stderr)
        self.assertIn("LibraryNotFound: libpackd.so is in none of /nowhere", run(PACKD_LIBRARY="/nowhere/libpackd.so").stderr)
        self.assertIn("cannot be loaded", run(PACKD_LIBRARY=__file__).stderr)


if __name__ == "__main__":
    unittest.main()
