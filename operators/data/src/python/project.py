# Which files belong to the user's project. Shared by the worker and by the search for imports.
import os
import sys
import sysconfig

_LIBRARY = tuple(
    os.path.join(os.path.abspath(path), "")
    for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    if path
)


def own(path, folders):
    """Whether a file lies in one of the project's folders and is not an installed package."""
    if path.startswith(_LIBRARY):
        return False
    for folder in folders:
        if path.startswith(folder):
            parts = path[len(folder) :].split(os.sep)
            if "site-packages" not in parts and "dist-packages" not in parts:
                return True
    return False


def folders_of(file, directory):
    """Returns the folder of the file and the working directory, each with a separator at its end."""
    places = {os.path.dirname(os.path.abspath(file)), os.path.abspath(directory)}
    return tuple(sorted(os.path.join(place, "") for place in places))


def search_first(file):
    """Puts the folder of the file first on the search path, like `python FILE`."""
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))


def version():
    """Returns name and version of the interpreter."""
    number = ".".join(str(part) for part in sys.version_info[:3])
    return "{} {}".format(sys.implementation.name, number)
