"""packd_py_test: an integration test in Python over the real binaries, run by the system's python3 (Debian's packages)."""

def packd_py_test(name, src, size = "medium", tags = [], data = [], args = []):
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tests/integration:run_python.sh"],
        args = ["$(location %s)" % src] + args,
        data = [
            src,
            "//tests/integration:support",
            "//client:packctl",
            "//proto:protos",
            "//server:packd",
        ] + data,
        tags = tags + ["grpc"],
    )
