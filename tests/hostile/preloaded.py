"""Daemons under the library of preload.c, and what controls them."""

import mmap
import os
import struct
import subprocess

import harness

LIBRARY = os.path.join(harness.TOP, "tests", "hostile", "libpackd_hostile.so")
DRIVER = os.path.join(harness.TOP, "tests", "fault", "driver")


class Controls:
    """The file through which the preloaded library is told what to do."""

    FIELDS = ("clock_offset_ns", "sync_held", "syncs_waiting", "sync_sleep_ns", "disk_bytes", "refused", "quota_bytes", "quota_silent", "no_reserve")

    def __init__(self, directory):
        self.path = os.path.join(directory, "controls")
        with open(self.path, "wb") as file:
            file.write(bytes(8 * len(self.FIELDS)))
        with open(self.path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 8 * len(self.FIELDS))

    def set(self, field, value):
        struct.pack_into("<q", self.map, 8 * self.FIELDS.index(field), value)

    def get(self, field):
        return struct.unpack_from("<q", self.map, 8 * self.FIELDS.index(field))[0]


def skip_sanitized(test):
    """Ends the test as skipped, by name, where the build takes no preloaded library."""
    if subprocess.run([DRIVER], capture_output=True).returncode == 77:
        print("SKIP: a sanitizer build takes no preloaded library", flush=True)
        test.skipTest("sanitizer build")


def daemon(controls, directory, feeds, socket, extra):
    """A daemon at `socket` whose log, at directory/data, lies on the disk that the controls describe."""
    environment = {"LD_PRELOAD": LIBRARY, "PACKD_HOSTILE_FILE": controls.path, "PACKD_HOSTILE_DIR": os.path.join(directory, "data")}
    return harness.Daemon(feeds, directory=directory, environment=environment, arguments=["--listen", socket], extra=extra)
