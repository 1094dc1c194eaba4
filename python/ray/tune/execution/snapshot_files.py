"""Files around snapshots: on the driver's disk, and on the storage."""

import os
import shutil
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Optional, Set

import pyarrow
import pyarrow.fs

from ray.air._internal.storage_retries import retried

# The experiment state as other releases of Ray write and read it.
STATE_FILE_TMPL = "experiment_state-{}.json"

# A file appears there when it is complete, and not before.
_OBJECT_STORES = ("s3", "gcs", "abfs")


def _state_files_by_session(names: Iterable[str]) -> Dict[str, List[str]]:
    """Find the state files in an experiment's folder, by the run that wrote them.

    Args:
        names: The names of the files in the folder.

    Returns:
        The names by session, that of the experiment state first.
    """
    names = sorted(name for name in names if name.endswith((".json", ".pkl")))
    prefix, suffix = STATE_FILE_TMPL.split("{}")
    found = {}
    for name in names:
        if name.startswith(prefix) and name.endswith(suffix):
            session = name[len(prefix) : -len(suffix)]
            others = [n for n in names if session and session in n and n != name]
            found[session] = [name, *others]
    return found


@retried
def _read_file(fs: pyarrow.fs.FileSystem, path: str) -> bytes:
    with fs.open_input_stream(path) as f:
        return f.readall()


@retried
def _write_file(fs: pyarrow.fs.FileSystem, path: str, content: bytes) -> None:
    """Write a file, and the folder that it lies in."""
    folder = Path(path).parent.as_posix()
    if fs.type_name not in _OBJECT_STORES:  # They have no folders.
        fs.create_dir(folder)
    with fs.open_output_stream(path) as f:
        f.write(content)


@retried
def _replace_file(fs: pyarrow.fs.FileSystem, path: str, content: bytes) -> None:
    """Write a file so that it is never seen with a part of its content.

    Args:
        fs: The file system.
        path: Where to write. What is there is replaced.
        content: The content.
    """
    if fs.type_name not in _OBJECT_STORES:
        beside = f"{path}.tmp"
        with fs.open_output_stream(beside) as f:
            f.write(content)
        try:
            fs.move(beside, path)
            return
        except (NotImplementedError, pyarrow.ArrowNotImplementedError):
            fs.delete_file(beside)
    with fs.open_output_stream(path) as f:
        f.write(content)


def _replace_local_file(path: Path, content: bytes) -> None:
    beside = path.with_name(f"{path.name}.tmp")
    beside.write_bytes(content)
    os.replace(beside, path)


def _changed_files(root: Path, since_ns: int, skip: Set[str]) -> Iterator[str]:
    """Find the files that were written since some time.

    Args:
        root: The folder to look in, and in those below it.
        since_ns: The time, by the clock of the file system.
        skip: Names of files and folders in ``root`` that are left out.

    Yields:
        str: Path relative to ``root``.
    """
    root_folder = str(root)
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(os.path.join(root_folder, folder)))
        except FileNotFoundError:
            continue
        for entry in entries:
            if not folder and entry.name in skip:
                continue
            path = os.path.join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
                continue
            try:
                stat = entry.stat()
            except FileNotFoundError:
                continue
            # A file that was moved here keeps the time at which it was written.
            if max(stat.st_mtime_ns, stat.st_ctime_ns) >= since_ns:
                yield path


def _link_files(paths: Iterable[str], source: Path, target: Path) -> None:
    """Make files appear in another folder, without a copy where that is possible.

    Args:
        paths: Relative to ``source``. Those that are gone meanwhile are left out.
        source: A folder.
        target: Another one, on the same file system.
    """
    # Paths as strings: there may be hundreds of files, and the training loop waits.
    source_folder, target_folder = str(source), str(target)
    made = {target_folder}
    for path in paths:
        from_path = os.path.join(source_folder, path)
        to_path = os.path.join(target_folder, path)
        folder = os.path.dirname(to_path)
        if folder not in made:
            os.makedirs(folder, exist_ok=True)
            made.add(folder)
        try:
            if os.path.islink(from_path):
                shutil.copyfile(from_path, to_path)
                continue
            os.link(from_path, to_path)
        except FileNotFoundError:
            continue
        except OSError:  # E.g. there are no hard links.
            shutil.copyfile(from_path, to_path)


@retried
def _files_below(
    fs: pyarrow.fs.FileSystem, folder: str, recursive: bool = True
) -> Dict[str, Optional[int]]:
    """List the files in a folder on the storage.

    Args:
        fs: The file system.
        folder: The folder; it need not be there.
        recursive: Whether to list those in the folders below it, too.

    Returns:
        Their sizes, by path relative to the folder.
    """
    selector = pyarrow.fs.FileSelector(
        folder, allow_not_found=True, recursive=recursive
    )
    base = folder.strip("/") + "/"
    return {
        info.path.strip("/")[len(base) :]: info.size
        for info in fs.get_file_info(selector)
        if info.is_file
    }
