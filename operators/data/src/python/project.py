# Which modules are the user's own. Shared by the worker and by the search for imports.
import os
import sys
import sysconfig

_LIBRARY = tuple(
    os.path.join(os.path.abspath(path), "")
    for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    if path
)
# Folders of the system, of the interpreter, and hidden ones of the user.
_OTHERS = ("/bin/", "/etc/", "/lib/", "/lib64/", "/nix/", "/opt/", "/snap/", "/usr/", "/var/", "/System/", "/Library/")
_OTHERS += tuple(os.path.join(os.path.abspath(place), "") for place in (sys.prefix, sys.base_prefix, sys.exec_prefix))
_OTHERS += (os.path.join(os.path.expanduser("~"), "."),)


def own(path, folders):
    """Whether a file is the user's: of the project, or of a folder on the search path, but no installed package."""
    if path.startswith(_LIBRARY):
        return False
    inside = [folder for folder in folders if path.startswith(folder)]
    parts = path[max(map(len, inside), default=0) :].split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    return bool(inside) or not path.startswith(_OTHERS)


def folders_of(file, directory):
    """Returns the folder of the file, where its link leads, and the working directory, each with a separator at its
    end. Without a file (a function of an installed package), the working directory."""
    places = {os.path.abspath(directory)}
    if file is not None:
        places |= {os.path.dirname(os.path.abspath(file)), os.path.dirname(os.path.realpath(file))}
    return tuple(sorted(os.path.join(place, "") for place in places))


def search_first(file):
    """Puts the folder of the file first on the search path, like `python FILE`, and then the one that it links to.
    Without a file, nothing of the working directory is found."""
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    if file is None:
        return
    places = [os.path.dirname(os.path.abspath(file)), os.path.dirname(os.path.realpath(file))]
    sys.path[:0] = list(dict.fromkeys(places))


def version():
    """Returns name and version of the interpreter."""
    number = ".".join(str(part) for part in sys.version_info[:3])
    return "{} {}".format(sys.implementation.name, number)
