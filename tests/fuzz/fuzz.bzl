"""packd_fuzz: one fuzz target, built in two ways from the same LLVMFuzzerTestOneInput."""

def packd_fuzz(name, srcs, deps, inputs = 20000):
    """NAME runs under libFuzzer (bazel build --config=fuzz).

    NAME_smoke is a test, with any compiler, that replays corpus/NAME.hex, where there is one, and `inputs` generated inputs.
    """
    corpus = native.glob(["corpus/%s.hex" % name])
    native.cc_binary(
        name = name,
        testonly = True,
        srcs = srcs,
        linkopts = [
            "-Wl,--as-needed",
            "-fsanitize=fuzzer",
        ],
        tags = ["manual"],
        deps = deps,
    )
    native.cc_test(
        name = name + "_smoke",
        size = "small",
        srcs = srcs + ["smoke.c"],
        linkopts = ["-Wl,--as-needed"],
        linkstatic = True,
        args = ["$(location %s)" % path for path in corpus],
        data = corpus,
        local_defines = ["SMOKE_INPUTS=%d" % inputs],
        tags = ["no-tsan"],  # one thread, much arithmetic
        deps = deps + ["//tests/unit:random"],
    )
