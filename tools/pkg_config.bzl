"""System libraries as Bazel targets: @system//:NAME for each pkg-config module.

The headers of Debian's -dev packages lie in /usr/include, where the compiler looks anyway, so a target only carries what
pkg-config prints beyond that: macros and link flags. A missing package fails the build with its name.
"""

def _pkg_config_impl(ctx):
    tool = ctx.which("pkg-config")
    if tool == None:
        fail("pkg-config is not installed: apt-get install pkg-config")
    text = ["package(default_visibility = [\"//visibility:public\"])"]
    for name, module in sorted(ctx.attr.libraries.items()):
        flags = {}
        for kind in ["--cflags", "--libs"]:
            result = ctx.execute([tool, kind, module])
            if result.return_code != 0:
                fail("pkg-config does not know '%s'; install its -dev package (test.sh and demo.sh do)\n%s" %
                     (module, result.stderr))
            flags[kind] = [f for f in result.stdout.strip().split(" ") if f]
        defines = [f[2:] for f in flags["--cflags"] if f.startswith("-D")]

        # grpc.pc also lists the static closure (Abseil and more), which the shared library brings along by itself.
        links = [f for f in flags["--libs"] if not f.startswith("-labsl_")]
        text.append("cc_library(name = \"%s\", defines = %s, linkopts = %s)" % (name, defines, links))
    ctx.file("BUILD", "\n".join(text) + "\n")

pkg_config_repository = repository_rule(
    implementation = _pkg_config_impl,
    attrs = {"libraries": attr.string_dict(mandatory = True)},
    configure = True,
    local = True,
)
