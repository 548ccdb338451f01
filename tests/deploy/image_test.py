#!/usr/bin/env python3
"""The image: built as deploy/image/build.sh does, then the sidecar's life: packd from the image as uid 65532 over a read-only root, a trainer
outside it that fetches over the shared Unix socket. Run from the top of the tree, as root, after `bazel build //client:packctl`; minutes long."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PACKCTL = os.path.join("bazel-bin", "client", "packctl")
TAG = "localhost/packd:tested"
UID = 65532
DEADLINE_S = 60


def missing():
    """Why the test cannot run here; empty where it can."""
    if os.geteuid() != 0:
        return "it needs root, for debootstrap and chroot"
    lacking = [tool for tool in ("buildah", "debootstrap") if not shutil.which(tool)]
    return f"{' and '.join(lacking)} not installed" if lacking else ""


WHY_NOT = missing()
if WHY_NOT:
    print(f"SKIP: the image: {WHY_NOT}")


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} exited with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def wait_for(what, condition):
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {DEADLINE_S} s")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class ImageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run("deploy/image/build.sh", "--tag", TAG)
        cls.container = run("buildah", "from", "--pull-never", TAG).strip()
        cls.addClassCleanup(run, "buildah", "rm", cls.container)
        cls.top = tempfile.mkdtemp(prefix="packd-image-")
        cls.addClassCleanup(shutil.rmtree, cls.top)
        cls.root = os.path.join(cls.top, "root")
        os.mkdir(cls.root)
        run("mount", "--bind", run("buildah", "mount", cls.container).strip(), cls.root)
        cls.addClassCleanup(run, "umount", "-R", cls.root)
        run("mount", "-o", "remount,bind,ro", cls.root)
        for name in ("run", "lib"):
            directory = os.path.join(cls.top, name)
            os.mkdir(directory, 0o750)
            os.chown(directory, UID, UID)
            run("mount", "--bind", directory, os.path.join(cls.root, "var/lib/packd" if name == "lib" else "run/packd"))
        run("mount", "-t", "proc", "proc", os.path.join(cls.root, "proc"))
        cls.socket = os.path.join(cls.top, "run", "packd.sock")

    def start(self):
        ports = os.path.join(self.top, "run", "ports.json")
        if os.path.exists(ports):
            os.unlink(ports)
        packd = subprocess.Popen(
            ["chroot", f"--userspec={UID}:{UID}", self.root, "/usr/bin/packd", "--config", "/etc/packd/packd.yaml", "--listen",
             "unix:/run/packd/packd.sock", "--http", "127.0.0.1:0", "--ports-file", "/run/packd/ports.json"],
            env={"PATH": "/usr/sbin:/usr/bin:/bin"}, stderr=subprocess.PIPE, text=True)
        self.addCleanup(packd.stderr.close)
        self.addCleanup(packd.kill)
        wait_for("packd of the image is ready", lambda: os.path.exists(ports) or packd.poll() is not None)
        self.assertIsNone(packd.poll(), packd.poll() is not None and packd.stderr.read())
        return packd

    def packctl(self, *arguments, **options):
        return run(PACKCTL, "--server", f"unix:{self.socket}", *arguments, timeout=120, **options)

    def test_configuration_of_the_image(self):
        config = json.loads(run("buildah", "inspect", "--type", "image", TAG))["Docker"]["config"]
        self.assertEqual(config["User"], f"{UID}:{UID}")
        self.assertEqual((config["Entrypoint"], config["StopSignal"]), (["packd"], "SIGTERM"))
        self.assertEqual(config["Healthcheck"]["Test"][:2], ["CMD", "packctl"])
        self.assertEqual(set(config["ExposedPorts"]), {"7070/tcp", "7071/tcp"})
        left = [name for name in ("gcc", "bazel", "python3", "make") if os.path.exists(os.path.join(self.root, "usr", "bin", name))]
        self.assertEqual(left, [], "tools of the build stage are not in the image")

    def test_the_root_is_read_only(self):
        done = subprocess.run(["chroot", f"--userspec={UID}:{UID}", self.root, "/usr/bin/touch", "/etc/packd/x"], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)

    def test_sidecar(self):
        packd = self.start()
        self.assertEqual(os.stat(f"/proc/{packd.pid}").st_uid, UID)
        self.assertEqual(os.stat(self.socket).st_uid, UID)
        lines = "".join(json.dumps({"tokens": [i % 97 + 1] * (i % 300 + 1)}) + "\n" for i in range(2000))
        self.packctl("push", "--stream", "s", "--end-feed", "-", input=lines)
        steps = self.packctl("--json", "fetch", "--job", "train", "--dp-size", "1", "--rank", "0", "--steps", "2").splitlines()
        self.assertGreater(len(steps), 0)
        health = subprocess.run(["chroot", f"--userspec={UID}:{UID}", self.root, "/usr/bin/packctl", "--server", "unix:/run/packd/packd.sock", "--json", "status"],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(health.returncode, 0, health.stderr)
        packd.send_signal(signal.SIGTERM)
        self.assertEqual(packd.wait(DEADLINE_S), 0, "a stop within the grace period is a clean one")
        again = self.start()  # the volume outlives the container
        (feed,) = json.loads(self.packctl("--json", "status"))["feeds"]
        self.assertTrue(feed.get("ended"))
        again.send_signal(signal.SIGTERM)
        self.assertEqual(again.wait(DEADLINE_S), 0)


if __name__ == "__main__":
    sys.exit(unittest.main())
