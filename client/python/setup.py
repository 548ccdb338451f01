"""Adds to the wheel what is not Python: libpackd.so and its header. Everything else is in pyproject.toml.

libpackd.so is taken from $PACKD_LIBRARY, else from bazel-bin of the tree around this folder, where `bazel build //client:libpackd.so` puts it;
that is run when it is not there.
"""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from wheel.bdist_wheel import bdist_wheel

TOP = Path(__file__).resolve().parents[2]


def library():
    """Path of libpackd.so, built where it has to be."""
    given = os.environ.get("PACKD_LIBRARY")
    path = Path(given) if given else TOP / "bazel-bin" / "client" / "libpackd.so"
    if not path.exists() and not given:
        subprocess.run(["bazel", "build", "//client:libpackd.so"], cwd=TOP, check=True)
    if not path.exists():
        raise SystemExit(f"{path}: no libpackd.so there")
    return path


class BuildWithLibrary(build_py):
    """The package, then the two files beside it."""

    def run(self):
        to = Path(self.build_lib) / "packd"
        shutil.rmtree(to, ignore_errors=True)  # a module that is no longer there would stay
        super().run()
        for source in (library(), TOP / "client" / "include" / "packd.h"):
            shutil.copyfile(source, to / source.name)


class AnyPython(bdist_wheel):
    """The library is this machine's, but no Python's: cffi loads it."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class HasLibrary(Distribution):
    """Not a pure package."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": AnyPython}, distclass=HasLibrary)
