"""CUDA with Bazel: finds nvcc, compiles .cu files, links cudart statically.

PACKD_CUDA=auto (default) takes nvcc from PATH or /usr/local/cuda, and builds without where there is none.
PACKD_CUDA=off builds without. PACKD_CUDA=/path/to/cuda must hold bin/nvcc, or the build fails.

    load("@cuda//:defs.bzl", "HAVE_CUDA")
    load("//tools:cuda.bzl", "nvcc_library")
"""

def _find_root(ctx):
    choice = ctx.os.environ.get("PACKD_CUDA", "auto")
    if choice == "off":
        return None
    if choice == "auto" or choice == "":
        nvcc = ctx.which("nvcc")
        roots = [nvcc.realpath.dirname.dirname] if nvcc else []
        roots.append(ctx.path("/usr/local/cuda"))
        for root in roots:
            if root.get_child("bin").get_child("nvcc").exists and _find_cudart(root):
                return root
        return None
    if not choice.startswith("/"):
        fail("PACKD_CUDA is '%s'; it must be auto, off or the absolute path of a CUDA toolkit" % choice)
    root = ctx.path(choice)
    if not root.get_child("bin").get_child("nvcc").exists:
        fail("PACKD_CUDA=%s: there is no bin/nvcc; give the toolkit's root, or auto, or off" % choice)
    if not _find_cudart(root):
        fail("PACKD_CUDA=%s: there is no libcudart_static.a in lib64 or lib" % choice)
    return root

def _find_cudart(root):
    for name in ["lib64", "lib"]:
        library = root.get_child(name).get_child("libcudart_static.a")
        if library.exists:
            return library
    return None

def _cuda_impl(ctx):
    root = _find_root(ctx)
    ctx.file("defs.bzl", "HAVE_CUDA = %s\nNVCC = \"%s\"\n" % (
        root != None,
        root.get_child("bin").get_child("nvcc") if root else "",
    ))
    if root == None:
        ctx.file("BUILD", "")
        return
    ctx.symlink(_find_cudart(root), "libcudart_static.a")
    ctx.file("BUILD", """
cc_library(
    name = "cudart",
    srcs = ["libcudart_static.a"],
    linkopts = ["-ldl", "-lrt", "-lpthread"],
    visibility = ["//visibility:public"],
)
""")

cuda_repository = repository_rule(
    implementation = _cuda_impl,
    configure = True,
    environ = ["PACKD_CUDA"],
    local = True,
)

# Real code for Ampere and Hopper, PTX for what comes later.
_ARCHITECTURES = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_90,code=compute_90",
]

def _nvcc_objects_impl(ctx):
    headers = depset(ctx.files.hdrs, transitive = [d[CcInfo].compilation_context.headers for d in ctx.attr.deps])
    objects = []
    for src in ctx.files.srcs:
        out = ctx.actions.declare_file(src.basename + ".o")
        objects.append(out)
        flags = ["-std=c++17", "-O3", "-Xcompiler=-Wall,-Wextra,-Werror,-fPIC,-g", "-I."] + _ARCHITECTURES + [
            # A kernel that spills registers is a mistake, not a warning.
            "-Xptxas=--warn-on-spills,--warning-as-error",
            "-c",
            src.path,
            "-o",
            out.path,
        ]
        ctx.actions.run_shell(
            inputs = depset([src], transitive = [headers]),
            outputs = [out],
            # nvcc names its temporary files by process id, which repeat between sandboxes: each
            # run gets a folder of its own.
            command = "export TMPDIR=$PWD/nvcc-tmp && mkdir -p $TMPDIR && trap 'rm -rf $TMPDIR' EXIT && %s \"$@\"" %
                      ctx.attr.nvcc,
            arguments = flags,
            mnemonic = "Nvcc",
            progress_message = "Compiling %s with nvcc" % src.short_path,
            use_default_shell_env = True,
        )
    return [DefaultInfo(files = depset(objects))]

_nvcc_objects = rule(
    implementation = _nvcc_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "nvcc": attr.string(mandatory = True),
    },
)

def nvcc_library(name, nvcc, srcs, hdrs = [], deps = [], visibility = None):
    """A cc_library of .cu files. `nvcc` is NVCC of @cuda//:defs.bzl, and only where HAVE_CUDA is true."""
    _nvcc_objects(name = name + "_objects", srcs = srcs, hdrs = hdrs, deps = deps, nvcc = nvcc)
    native.cc_library(
        name = name,
        srcs = [name + "_objects"],
        linkstatic = True,
        visibility = visibility,
        deps = deps + ["@cuda//:cudart"],
    )
