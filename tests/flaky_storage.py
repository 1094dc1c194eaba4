"""A file system on which operations fail: once each, or all from some moment on.

It lies in a local folder. What fails is said by files in another folder, so that tests
can say it while other processes, as those of trials, use the file system.
"""

import errno
import hashlib
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.fs
from pyarrow.fs import FileSelector, FileSystemHandler, LocalFileSystem, PyFileSystem

from ray import cloudpickle

OPERATIONS = ("info", "list", "create_dir", "delete", "move", "open", "read", "write")


class _Stream:
    """A file that is written to or read, and fails half-way through."""

    def __init__(self, file, fail):
        self._file = file
        self._fail = fail
        self.closed = False

    def write(self, data):
        data = bytes(data)
        try:
            self._fail()
        except OSError:
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            raise
        return self._file.write(data)

    def read(self, n=-1):
        self._fail()
        return self._file.read(n)

    def seek(self, offset, whence=0):
        return self._file.seek(offset, whence)

    def tell(self):
        return self._file.tell()

    def size(self):
        return os.fstat(self._file.fileno()).st_size

    def flush(self):
        self._file.flush()

    def close(self):
        self.closed = True
        self._file.close()

    def readable(self):
        return True

    def writable(self):
        return True

    def seekable(self):
        return True


class FlakyHandler(FileSystemHandler):
    """Does on the local disk what it is asked to, unless that is to fail.

    Args:
        control: The folder of the files that say what fails.
    """

    def __init__(self, control):
        self._control = str(control)
        self._local = LocalFileSystem()

    def __eq__(self, other):
        return isinstance(other, FlakyHandler) and self._control == other._control

    def __ne__(self, other):
        return not self == other

    def get_type_name(self):
        return "flaky"

    def normalize_path(self, path):
        return path

    def _fail(self, operation, path):
        control = Path(self._control)
        lasting = control / f"lasting-{operation}"
        if lasting.exists():
            number, part = lasting.read_text().split(" ", 1)
            if part in path:
                raise OSError(int(number), os.strerror(int(number)), path)
        once = control / f"once-{operation}"
        if once.exists() and once.read_text() in path:
            seen = hashlib.sha1(f"{operation} {path}".encode()).hexdigest()
            try:
                os.close(os.open(control / seen, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            with open(control / "failed", "a") as f:
                f.write(f"{operation} {path}\n")
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def get_file_info(self, paths):
        for path in paths:
            self._fail("info", path)
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector):
        self._fail("list", selector.base_dir)
        return self._local.get_file_info(
            FileSelector(
                selector.base_dir,
                allow_not_found=selector.allow_not_found,
                recursive=selector.recursive,
            )
        )

    def create_dir(self, path, recursive):
        self._fail("create_dir", path)
        self._local.create_dir(path, recursive=recursive)

    def delete_dir(self, path):
        self._fail("delete", path)
        self._local.delete_dir(path)

    def delete_dir_contents(self, path, missing_dir_ok):
        self._fail("delete", path)
        self._local.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self):
        raise NotImplementedError

    def delete_file(self, path):
        self._fail("delete", path)
        self._local.delete_file(path)

    def move(self, source, target):
        self._fail("move", target)
        self._local.move(source, target)

    def copy_file(self, source, target):
        self._fail("write", target)
        self._local.copy_file(source, target)

    def _open(self, path, mode, operation):
        self._fail("open", path)
        file = open(path, mode)
        return pa.PythonFile(
            _Stream(file, lambda: self._fail(operation, path)), mode=mode[0]
        )

    def open_input_stream(self, path):
        return self._open(path, "rb", "read")

    def open_input_file(self, path):
        return self._open(path, "rb", "read")

    def open_output_stream(self, path, metadata):
        return self._open(path, "wb", "write")

    def open_append_stream(self, path, metadata):
        return self._open(path, "ab", "write")


class FlakyStorage:
    """A flaky file system, and what fails on it.

    Args:
        control: A folder for the files that say what fails.
    """

    def __init__(self, control):
        self._control = Path(control)
        self._control.mkdir(parents=True, exist_ok=True)
        # Workers do not find the modules of tests.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self.filesystem = PyFileSystem(FlakyHandler(self._control))

    def fail_once(self, *operations, part=""):
        """Let the first of these operations on each path fail, when half is done.

        Args:
            *operations: Some of :data:`OPERATIONS`; none for all.
            part: What has to be in a path.
        """
        for operation in operations or OPERATIONS:
            (self._control / f"once-{operation}").write_text(part)

    def fail(self, number, *operations, part=""):
        """Let all of these operations fail from now on.

        Args:
            number: An ``errno``.
            *operations: Some of :data:`OPERATIONS`; none for all.
            part: What has to be in a path.
        """
        for operation in operations or OPERATIONS:
            beside = self._control / f"{operation}.tmp"
            beside.write_text(f"{number} {part}")
            beside.replace(self._control / f"lasting-{operation}")

    def heal(self):
        """Let nothing fail any more."""
        for path in self._control.glob("*-*"):
            path.unlink()

    @property
    def failed(self):
        """What has failed once: operation and path of each."""
        try:
            lines = (self._control / "failed").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [tuple(line.split(" ", 1)) for line in lines]
