# Finds, without running any of it, the modules of the project that a file imports at any depth. Writes one JSON object.
# `absent` lists paths that would change the answer if they existed.
import ast
import importlib.machinery
import json

SUFFIXES = importlib.machinery.all_suffixes()


class Imports:
    def __init__(self, file, folders):
        self.file = file
        self.folders = folders
        self.files = {}
        self.absent = set()
        self.pending = []
        self.known = {}
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        skipped = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)
        # The modules that this script itself has imported do not count, so `sys.modules` is not asked.
        self.finders = [finder for finder in finders if finder not in skipped]
        self.places = [place for place in sys.path if self.is_own_folder(place)]

    def is_own_folder(self, place):
        return own(os.path.join(os.path.abspath(place), "x"), self.folders)

    def walk(self, package):
        self.add(self.file, package)
        while self.pending:
            path, package = self.pending.pop()
            tree = parsed(path)
            if tree is not None:
                self.of_tree(tree, package)

    def add(self, path, package):
        path = os.path.abspath(path)
        if path not in self.files and own(path, self.folders) or path == self.file and path not in self.files:
            self.files[path] = True
            if path.endswith(".py") or path == self.file:
                self.pending.append((path, package))

    def of_tree(self, tree, package):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                self.of_from(node, package)
            elif isinstance(node, ast.Call):
                self.of_call(node, package)

    def of_from(self, node, package):
        base = relative(node.module or "", node.level, package)
        if base is None:
            return
        locations = self.module(base)
        for alias in node.names:
            if alias.name == "*":
                self.of_star(base, locations)
            elif locations is not None:
                self.module(base + "." + alias.name)

    def of_star(self, base, locations):
        """Imports the submodules that `__all__` of a package names."""
        for place in locations or ():
            tree = parsed(os.path.join(place, "__init__.py"))
            for node in tree.body if tree is not None else ():
                names = node.targets if isinstance(node, ast.Assign) else ()
                if any(isinstance(name, ast.Name) and name.id == "__all__" for name in names):
                    for text in strings(node.value):
                        self.module(base + "." + text)

    def of_call(self, node, package):
        """Handles `import_module("name")`, `__import__("name")` and `run_module("name")`."""
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in ("import_module", "__import__", "run_module") and node.args:
            for text in strings(node.args[0]):
                level = len(text) - len(text.lstrip("."))
                name = relative(text.lstrip("."), level, package)
                if name:
                    self.module(name)

    def module(self, name):
        """Adds a module and its packages. Returns the folders of its submodules if it is a package of the project."""
        if not name or not all(part.isidentifier() for part in name.split(".")):
            return None
        if name not in self.known:
            self.known[name] = None
            self.known[name] = self.found(name)
        return self.known[name]

    def found(self, name):
        package, _, last = name.rpartition(".")
        if not package and name in sys.builtin_module_names:
            return None
        places = None
        if package:
            places = self.module(package)
            if places is None:
                return None
        spec = self.spec(name, places)
        for place in self.places if places is None else places:
            self.lacks(place, last, spec)
        if spec is None:
            # Python finds a namespace package only if its parent is imported.
            return [os.path.join(place, last) for place in places or () if os.path.isdir(os.path.join(place, last))]
        locations = spec.submodule_search_locations
        if spec.origin and spec.has_location:
            self.add(spec.origin, name if locations is not None else package)
        inside = [place for place in locations or () if self.is_own_folder(place)]
        return inside or None

    def spec(self, name, places):
        finders = self.finders if places is None else [importlib.machinery.PathFinder]
        for finder in finders:
            try:
                spec = finder.find_spec(name, places)
            except Exception:
                continue
            if spec is not None:
                return spec
        return None

    def lacks(self, place, last, spec):
        """Notes the paths at which another module of that name would be found first."""
        folder = os.path.join(os.path.abspath(place), last)
        paths = [folder] + [folder + suffix for suffix in SUFFIXES]
        if os.path.isdir(folder):
            paths += [os.path.join(folder, "__init__" + suffix) for suffix in SUFFIXES]
        origin = os.path.abspath(spec.origin) if spec is not None and spec.origin else ""
        for path in paths:
            if path != origin and not os.path.exists(path):
                self.absent.add(path)


def strings(node):
    nodes = getattr(node, "elts", [node])
    return [item.value for item in nodes if isinstance(item, ast.Constant) and isinstance(item.value, str)]


def relative(module, level, package):
    if level == 0:
        return module
    parts = package.split(".") if package else []
    if level > len(parts):
        return None
    return ".".join(parts[: len(parts) - level + 1] + ([module] if module else []))


def parsed(path):
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read(), path)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


# Words with which a module may bind names that its text does not show.
UNSEEN = {"__getattr__", "eval", "exec", "globals", "locals", "modules", "setattr", "vars"}


def lacking(file, function):
    """Returns the functions and classes of a file without this name; `None` if it has the name, or may have it."""
    tree = parsed(file)
    if tree is None:
        return None
    bound, known, pending = set(), [], list(ast.iter_child_nodes(tree))
    for node in ast.walk(tree):
        words = {getattr(node, "id", None), getattr(node, "attr", None), getattr(node, "name", None)}
        if words & UNSEEN or isinstance(node, ast.alias) and node.name == "*":
            return None
        if isinstance(node, ast.Global):
            bound.update(node.names)
    while pending:
        node = pending.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            known.append(node.name)
        elif isinstance(node, ast.Lambda):
            continue
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name.split(".")[0])
        else:
            # Targets of assignments, loops, `with` and `:=`; names of exceptions and patterns.
            is_target = isinstance(getattr(node, "ctx", None), ast.Store)
            names = (getattr(node, "id", None) if is_target else None, getattr(node, "name", None))
            bound.update(name for name in names + (getattr(node, "rest", None),) if name)
            pending = list(ast.iter_child_nodes(node)) + pending
    if function in bound or function in known:
        return None
    return list(dict.fromkeys(name for name in known if not name.startswith("_")))


def syntax_error(file):
    try:
        with open(file, "rb") as source:
            ast.parse(source.read(), file)
    except SyntaxError as error:
        return {"message": "{}".format(error.msg), "line": error.lineno or 0}
    except (OSError, ValueError, RecursionError) as error:
        return {"message": str(error), "line": 0}
    return None


def named(package):
    """Returns the name of an installed package. What an installation left behind may have no metadata."""
    return (package.metadata or {}).get("Name") or ""


def packages():
    """Returns the installed packages with their versions."""
    import importlib.metadata

    found = {(named(item), item.version or "") for item in importlib.metadata.distributions()}
    return ["{} {}".format(*item) for item in sorted(found) if item[0]]


GROUP = "searchmill.operators"


def brought():
    """Returns the operators that installed packages bring: name, package, version, module and function."""
    import importlib.metadata

    found, seen = [], set()
    for package in importlib.metadata.distributions():
        name = named(package)
        # Of two with one name, Python imports the first.
        if name and name not in seen:
            seen.add(name)
            for point in package.entry_points:
                if point.group == GROUP:
                    module, _, function = point.value.partition("[")[0].partition(":")
                    found.append((point.name, name, package.version or "", module.strip(), function.strip()))
    return sorted(found)


def located(module, imports):
    """Returns the file of a module without importing it, and the folder or file of its outermost package.

    `a.b.c` may lie in the package `a`, or in a package `b` of the namespace `a`."""
    parts, places, outermost = module.split("."), None, None
    for place in range(len(parts)):
        spec = imports.spec(".".join(parts[: place + 1]), places)
        if spec is None:
            return None, None
        places = spec.submodule_search_locations
        # A namespace is shared with other packages.
        if outermost is None and spec.has_location:
            outermost = list(places)[0] if places else spec.origin
    return (os.path.abspath(spec.origin), outermost) if spec.has_location else (None, None)


def content(outermost):
    """Returns the files of a package, its folders, and a digest of the files with their names."""
    import hashlib

    paths, places, digest = [], [], hashlib.sha256()
    if os.path.isfile(outermost):
        paths.append(outermost)
    for folder, folders, files in os.walk(outermost):
        # In the same order on every machine.
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        places.append(folder)
        paths += [os.path.join(folder, name) for name in sorted(files)]
    for path in paths:
        inside = hashlib.sha256()
        # A pipe would be waited for, and a link may lead nowhere.
        with open(path if os.path.isfile(path) else os.devnull, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                inside.update(block)
        name = os.path.relpath(path, os.path.dirname(outermost))
        digest.update("{} {}\n".format(name, inside.hexdigest()).encode("utf-8", "surrogateescape"))
    return paths, places, digest.hexdigest()


def installed(name, directory):
    """Finds an operator that an installed package brings."""
    import glob

    known = brought()
    same = [one for one in known if one[0] == name]
    told = {"names": [one[0] for one in known], "wrong": None, "module": "", "function": "", "file": None}
    # With one more package on the search path the answer would be another.
    told.update(identity="", files=[], folders=[os.path.abspath(place) for place in sys.path])
    # What an installed package says of itself may be written anew in its place.
    for place in list(told["folders"]):
        for info in glob.glob(os.path.join(glob.escape(place), "*.*-info")):
            told["folders"] += [os.path.join(info, file) for file in ("entry_points.txt", "METADATA", "PKG-INFO")]
    if not same:
        told["wrong"] = "no package of `{}` brings an operator `{}`".format(sys.executable, name)
        return told
    if len(same) > 1:
        packages = sorted({"`%s`" % one[1] for one in same})
        bring = "brings more than one" if len(packages) == 1 else "both bring an"
        told["wrong"] = "{} {} operator `{}`".format(" and ".join(packages), bring, name)
        return told
    _, package, number, told["module"], told["function"] = same[0]
    imports = Imports("", folders_of(None, directory))
    told["file"], outermost = located(told["module"], imports)
    if told["file"] is None or not told["function"].isidentifier():
        what = "the operator `{}` of `{}` is `{}:{}`, which is not there"
        told["wrong"] = what.format(name, package, told["module"], told["function"])
        told["file"] = None
        return told
    # Which function the name stands for is written beside the package's files, not in them.
    told["identity"] = "operator {} of {} {}, {}:{}".format(name, package, number, told["module"], told["function"])
    if not own(told["file"], imports.folders):
        # Installed packages are in no key: this one is the operator itself.
        told["files"], folders, digest = content(os.path.abspath(outermost))
        told["folders"] += folders
        told["identity"] += ", files {}".format(digest)
    return told


def answer(asked):
    entry, package = None, ""
    function = asked["function"]
    if asked["file"] is not None:
        file = os.path.abspath(asked["file"])
        search_first(file)
    else:
        search_first(None)
        entry = installed(function, asked["directory"])
        file, function = entry["file"], entry["function"]
        # Relative imports start at its package.
        is_package = file is not None and os.path.basename(file) == "__init__.py"
        package = entry["module"] if is_package else entry["module"].rpartition(".")[0]
    folders = folders_of(asked["file"], asked["directory"])
    imports = Imports(file, folders)
    if entry is None or file is not None and own(file, folders):
        imports.walk(package)
    libraries = ("site-packages", "dist-packages")
    site = {os.path.abspath(place) for place in sys.path if os.path.basename(place) in libraries}
    tree = parsed(file) if file is not None else None
    return {
        "version": version(),
        "executable": os.path.abspath(sys.executable or ""),
        "files": sorted(imports.files),
        "absent": sorted(imports.absent),
        "site": sorted(site),
        "lacking": lacking(file, function) if file is not None else None,
        "syntax_error": syntax_error(file) if file is not None else None,
        "packages": packages() if asked["packages"] else [],
        "signature": signature(tree, function) if tree is not None else None,
        "entry": entry,
    }


json.dump(answer(json.loads(sys.argv[1])), sys.stdout)
