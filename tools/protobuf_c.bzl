"""protobuf_c_library: the C code of a .proto file, made by Debian's protoc-c."""

def _protobuf_c_gen_impl(ctx):
    outputs = []
    for src in ctx.files.srcs:
        stem = src.basename[:-len(".proto")]
        outs = [ctx.actions.declare_file(stem + ext) for ext in [".pb-c.h", ".pb-c.c"]]
        ctx.actions.run_shell(
            inputs = ctx.files.srcs,
            outputs = outs,
            command = "protoc-c --proto_path=%s --c_out=%s %s" % (src.dirname, outs[0].dirname, src.path),
            mnemonic = "ProtobufC",
            use_default_shell_env = True,
        )
        outputs += outs
    descriptor = ctx.actions.declare_file(ctx.attr.name + ".descriptor.bin")
    ctx.actions.run_shell(
        inputs = ctx.files.srcs,
        outputs = [descriptor],
        command = "protoc --include_imports --descriptor_set_out=%s --proto_path=%s %s" % (
            descriptor.path,
            ctx.files.srcs[0].dirname,
            " ".join([f.path for f in ctx.files.srcs]),
        ),
        mnemonic = "ProtoDescriptor",
        use_default_shell_env = True,
    )
    return [
        DefaultInfo(files = depset(outputs)),
        OutputGroupInfo(descriptor = depset([descriptor])),
    ]

_protobuf_c_gen = rule(
    implementation = _protobuf_c_gen_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".proto"])},
)

def protobuf_c_library(name, srcs, visibility = None):
    """Generates and compiles SRCS; includes read "proto/NAME.pb-c.h". NAME_descriptor is the FileDescriptorSet."""
    _protobuf_c_gen(name = name + "_gen", srcs = srcs)
    native.filegroup(
        name = name + "_descriptor",
        srcs = [name + "_gen"],
        output_group = "descriptor",
        visibility = visibility,
    )
    native.cc_library(
        name = name,
        srcs = [name + "_gen"],
        hdrs = [name + "_gen"],
        visibility = visibility,
        deps = ["@system//:protobuf_c"],
    )
