"""Repositories that take the place of ones that Bazel would fetch from the web."""

def _stand_in_impl(repository_ctx):
    for path, content in repository_ctx.attr.files.items():
        repository_ctx.file(path, content, executable = False)

stand_in = repository_rule(
    implementation = _stand_in_impl,
    attrs = {
        "files": attr.string_dict(
            doc = "The content of each file by its path in the repository.",
            mandatory = True,
        ),
    },
    doc = "A repository made of the files given.",
)

_CC = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_proto_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
    "objc_library",
]

_JAVA = [
    "java_binary",
    "java_import",
    "java_library",
    "java_proto_library",
    "java_runtime",
    "java_test",
    "java_toolchain",
]

def _native(names):
    return "\n".join(["{0} = native.{0}".format(name) for name in names])

def stand_ins():
    """Declares what a py_test makes Bazel 2 and 4 fetch."""
    stand_in(
        name = "rules_cc",
        files = {
            "BUILD": "",
            "cc/BUILD": "",
            "cc/defs.bzl": _native(_CC),
        },
    )
    stand_in(
        name = "rules_java",
        files = {
            "BUILD": "",
            "java/BUILD": "",
            "java/defs.bzl": _native(_JAVA),
        },
    )
    stand_in(
        name = "rules_python",
        files = {
            "BUILD": "",
            "python/BUILD": "",
            "python/defs.bzl": "",
        },
    )
    stand_in(
        name = "remote_coverage_tools",
        files = {
            "BUILD": "\n".join([
                'filegroup(name = "{}", visibility = ["//visibility:public"])'.format(name)
                for name in ["coverage_report_generator", "lcov_merger"]
            ]),
        },
    )
