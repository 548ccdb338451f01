"""packd_binding_test: a test of the Python package, with libpackd.so, the real daemon and what the integration tests share."""

load("//tests/integration:defs.bzl", "packd_py_test")

def packd_binding_test(name, src, data = [], **kwargs):
    packd_py_test(
        name = name,
        src = src,
        data = [
            "//client:libpackd.so",
            "//client/python:packd",
        ] + data,
        **kwargs
    )
