"""packd_binding_test: a test of the Python package, with libpackd.so, the real daemon and what the integration tests share."""

load("//tests/integration:defs.bzl", "packd_py_test")

def packd_binding_test(name, src, data = [], tags = [], **kwargs):
    packd_py_test(
        tags = tags + ["no-asan"],  # an interpreter built without it cannot load libpackd.so that has it
        name = name,
        src = src,
        data = [
            "//client:libpackd.so",
            "//client/python:packd",
        ] + data,
        **kwargs
    )
