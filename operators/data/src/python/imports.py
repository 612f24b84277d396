# Finds, without running any of it, the modules of the project that a file imports at any depth. Writes one JSON object.
# `absent` lists paths that would change the answer if they existed.
import ast
import importlib.machinery
import json

SUFFIXES = importlib.machinery.all_suffixes()


class Imports:
    def __init__(self, file, directory):
        self.file = os.path.abspath(file)
        self.folders = folders_of(file, directory)
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

    def walk(self):
        self.add(self.file, "")
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


def packages():
    """Returns the installed packages with their versions."""
    import importlib.metadata

    found = {(item.metadata["Name"] or "", item.version or "") for item in importlib.metadata.distributions()}
    return ["{} {}".format(*item) for item in sorted(found) if item[0]]


def answer(asked):
    file = os.path.abspath(asked["file"])
    search_first(file)
    imports = Imports(file, asked["directory"])
    imports.walk()
    libraries = ("site-packages", "dist-packages")
    site = {os.path.abspath(place) for place in sys.path if os.path.basename(place) in libraries}
    return {
        "version": version(),
        "executable": os.path.abspath(sys.executable or ""),
        "files": sorted(imports.files),
        "absent": sorted(imports.absent),
        "site": sorted(site),
        "lacking": lacking(file, asked["function"]),
        "syntax_error": syntax_error(file),
        "packages": packages() if asked["packages"] else [],
    }


json.dump(answer(json.loads(sys.argv[1])), sys.stdout)
