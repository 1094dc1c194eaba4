"""Find the new modules of an editable ray where they are edited.

An editable wheel carries this file as a module of its own, and a `.pth` file that
calls `install`. It runs at the start of every interpreter, so it imports nothing that
is not there yet.
"""

import os
import sys


class Finder:
    """Find modules that ray does not have in the source tree.

    It comes last in ``sys.meta_path``: a file that ray has is never hidden.

    Args:
        root: The folder that holds the ``ray`` folder of new files.
    """

    def __init__(self, root):
        self.root = root

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("ray."):
            return None
        from importlib.machinery import ModuleSpec
        from importlib.util import spec_from_file_location

        if not os.path.isdir(self.root):
            raise ModuleNotFoundError(
                f"No module named {name!r}: ray is an editable install of "
                f"{self.root}, which is gone; install it again",
                name=name,
            )
        base = os.path.join(self.root, *name.split("."))
        init = os.path.join(base, "__init__.py")
        if os.path.isfile(init):
            return spec_from_file_location(
                name, init, submodule_search_locations=[base]
            )
        if os.path.isfile(base + ".py"):
            return spec_from_file_location(name, base + ".py")
        if os.path.isdir(base) and os.path.basename(base) != "__pycache__":
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [base]
            return spec
        return None


def install(root):
    """Let modules be found below a folder, once."""
    if not any(getattr(f, "root", None) == root for f in sys.meta_path):
        sys.meta_path.append(Finder(root))
