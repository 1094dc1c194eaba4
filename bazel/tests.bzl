"""The one form that the test targets have."""

def tune_test(name, size, tags = [], data = []):
    """Declares the py_test of one file of tests/.

    Bazel cannot see Ray: it is the one of the virtual environment whose `bin` comes
    first in PATH (`ci/test` sees to that).

    Args:
      name: The file's name without its suffix.
      size: Bazel's: small is 60 s, medium 300 s, large 900 s.
      tags: `hang` for a regression test of a hang, which CI runs under Bazel too;
        `cpu:2` for one that starts a real Ray, in place of upstream's `exclusive`,
        which would leave the sandbox.
      data: Files that the test reads, beside those of tests/.
    """
    native.py_test(
        name = name,
        size = size,
        srcs = [
            "tests/{}.py".format(name),
            "//bazel:pytest_main.py",
        ],
        args = ["tests/{}.py".format(name)],
        data = ["//:test_support"] + data,
        # An __init__.py in tests/ would hide its helpers from the tests.
        legacy_create_init = False,
        main = "//bazel:pytest_main.py",
        tags = tags + ["team:ml"],
    )
