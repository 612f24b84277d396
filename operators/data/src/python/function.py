# The user's function: how it is found, what it takes, and what a call answers.
import importlib.machinery
import types


class Failed(Exception):
    """The function cannot be called at all."""

    def __init__(self, message, help="", cause=None):
        super().__init__(message)
        self.help, self.cause = help, cause


def readable(text):
    return text.encode("utf-8", "backslashreplace").decode()


def traced(error):
    """Returns the traceback below this script, with paths relative to the project."""
    import traceback

    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals is OWN:
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception:
        text = described(error)
    for place in sorted(Function.folders + (os.path.join(sys.prefix, ""),), key=len, reverse=True):
        text = text.replace('File "' + place, 'File "')
    if len(text) > 8000:
        text = text[:2000] + "\n...\n" + text[-6000:]
    return readable(text.rstrip())


def said(error):
    try:
        text = str(error)
    except Exception:
        text = ""
    name = type(error).__qualname__
    return readable((name + ": " + text if text else name)[:2000])


def parameters(call):
    """Returns the parameters of what is called. A wrapper that takes anything passes it on to what it wraps."""
    import functools
    import inspect

    if inspect.ismethod(call):
        return parameters(call.__func__)[1:]
    wrapped = getattr(call, "__wrapped__", None)
    known = (types.FunctionType, types.BuiltinFunctionType, functools.partial)
    if not isinstance(call, known) and wrapped is None:
        method = inspect.getattr_static(call if isinstance(call, type) else type(call), "__call__")
        if isinstance(method, (staticmethod, classmethod)):
            return parameters(method.__func__)[isinstance(method, classmethod) :]
        return parameters(method)[1:]
    try:
        own = list(inspect.signature(call, follow_wrapped=False).parameters.values())
    except ValueError:
        if wrapped is None:
            raise
        return parameters(wrapped)
    if wrapped is None or all(one.kind != one.VAR_KEYWORD for one in own):
        return own
    names = {one.name for one in own}
    own = [one for one in own if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    return own + [one for one in parameters(wrapped) if one.name not in names]


def taken(call):
    """Returns the names of the arguments of what is called; `None` if it takes any, or a whole row."""
    if isinstance(call, type) and (call.__new__ is not object.__new__ or type(call).__call__ is not type.__call__):
        # Its objects need not be of this class.
        return None
    try:
        found = parameters(call)
    except (AttributeError, TypeError, ValueError):
        return None
    names = [one.name for one in found if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return None if "row" in names or any(one.kind == one.VAR_KEYWORD for one in found) else names


class Function:
    """The function, and how it is called."""

    folders = ()

    def __init__(self, asked):
        self.file, self.name = os.path.abspath(asked["file"]), asked["function"]
        # Of an installed package: it is imported by its name.
        self.module_name = asked["module"]
        place = None if self.module_name else self.file
        Function.folders = folders_of(place, asked["directory"])
        self.seen = set()
        self.loop = None
        self.batch = asked["batch"]
        search_first(place)
        sys.argv = [self.file]
        if self.batch:
            self.needs_arrow()
        self.call = self.found(self.module())
        self.is_class = isinstance(self.call, type)
        self.takes = None if self.batch else taken(self.call)

    def settle(self, asked):
        """Prepares calls with these columns."""
        self.arguments, self.columns, self.input = asked["arguments"], asked["columns"], asked["input"]
        self.call = self.opened(self.call)
        if self.is_class and self.takes is not None and taken(self.call) != self.takes:
            raise Failed("the objects of `{}` do not take what its `__call__` says".format(self.name))
        self.names = None if self.batch else self.passed()

    def needs_arrow(self):
        try:
            import pyarrow
        except ImportError as error:
            help = "add `pyarrow` to the dependencies of the script, or install it for this interpreter"
            raise Failed("`batch` needs pyarrow: {}".format(said(error)), help) from None

    def module(self):
        try:
            return importlib.import_module(self.module_name) if self.module_name else self.module_of_file()
        except BaseException as error:
            leave_if_forked()
            help = ""
            if isinstance(error, ModuleNotFoundError):
                help = (
                    "if it is a file of yours, put it beside `{}`; else add it to the dependencies in the "
                    "`# /// script` block, or install it for {}"
                ).format(os.path.basename(self.file), sys.executable)
            what = "cannot import `{}`: {}".format(os.path.basename(self.file), said(error))
            raise Failed(what, help, error) from None

    def module_of_file(self):
        import importlib.util

        stem = os.path.splitext(os.path.basename(self.file))[0]
        name = stem if stem.isidentifier() and stem not in sys.modules else "function_of_" + stem
        loader = importlib.machinery.SourceFileLoader(name, self.file)
        spec = importlib.util.spec_from_file_location(name, self.file, loader=loader)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        loader.exec_module(module)
        return module

    def found(self, module):
        found = getattr(module, self.name, None)
        if callable(found):
            return found
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        known = [name for name in own if not name.startswith("_") and callable(getattr(module, name))]
        known = ", ".join("`%s`" % name for name in known)
        what = "`{}` has no function `{}`".format(os.path.basename(self.file), self.name)
        raise Failed(what, "it has {}".format(known) if known else "")

    def opened(self, found):
        """Creates the object of a class."""
        if not isinstance(found, type):
            return found
        try:
            instance = found(**self.arguments)
            if callable(getattr(instance, "setup", None)):
                instance.setup()
        except BaseException as error:
            leave_if_forked()
            raise Failed("cannot create `{}`: {}".format(self.name, said(error)), "", error) from None
        if not callable(instance):
            raise Failed("the class `{}` has no method `__call__`".format(self.name))
        self.arguments = {}
        return instance

    def passed(self):
        """Returns the names of the columns that are passed; `None` for all. Checks the rest."""
        self.whole = False
        try:
            found = parameters(self.call)
        except (AttributeError, TypeError, ValueError):
            return None
        named = [one for one in found if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        names = {one.name for one in named}
        required = {one.name for one in found if one.default is one.empty and one.kind not in (2, 4)}
        required -= set(self.arguments)
        every = any(one.kind == one.VAR_KEYWORD for one in found)
        if required == {"row"} and "row" not in self.columns:
            self.whole = True
            return None
        unknown = [name for name in self.arguments if name not in names and not every]
        if unknown:
            raise Failed("`{}` takes no argument `{}`".format(self.name, unknown[0]))
        twice = [name for name in self.arguments if name in self.columns]
        if twice and self.input:
            help = "rename the argument: columns are passed by name, too"
            raise Failed("the argument `{}` of `{}` is a column of the input".format(twice[0], self.name), help)
        if twice:
            help = "rename it in `arguments`, or remove it there"
            raise Failed("each call of `{}` gives the argument `{}`, too".format(self.name, twice[0]), help)
        missing = [one.name for one in found if one.name in required and one.name not in self.columns]
        positional = [one.name for one in found if one.kind == one.POSITIONAL_ONLY and one.name in required]
        if positional:
            what = "`{}` takes `{}` by position only".format(self.name, positional[0])
            raise Failed(what, "remove the `/` from its arguments: they are passed by name")
        if missing and not self.input:
            given = ", ".join("`%s`" % name for name in self.columns)
            help = "a call gives {}; write other arguments in `arguments`".format(given or "no argument")
            raise Failed("`{}` takes `{}`, which no call gives".format(self.name, missing[0]), help)
        if missing:
            help = "the columns are {}".format(", ".join("`%s`" % name for name in self.input))
            raise Failed("`{}` takes `{}`, which is no column of the input".format(self.name, missing[0]), help)
        if every or set(self.columns) <= names:
            return None
        return [name for name in self.columns if name in names]

    def of_row(self, row):
        """Calls the function with one row. Returns a line of JSON."""
        try:
            if self.names is not None:
                row = {name: row[name] for name in self.names}
            if self.whole:
                result = self.call(row, **self.arguments)
            elif self.arguments:
                result = self.call(**row, **self.arguments)
            else:
                result = self.call(**row)
            if type(result) is types.CoroutineType:
                result = self.awaited(result)
            return encoded(result)
        except Unfit as error:
            leave_if_forked()
            return json.dumps({"message": readable(str(error)), "unfit": True}).encode()
        except BaseException as error:
            leave_if_forked()
            return json.dumps({"message": said(error), "traceback": traced(error)}).encode()

    def awaited(self, result):
        import asyncio

        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        return self.loop.run_until_complete(result)

    def loaded(self):
        """Returns the files of the project's modules that were loaded since the last call."""
        found = []
        for name in [name for name in sys.modules if name not in self.seen]:
            self.seen.add(name)
            file = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
            if isinstance(file, str) and own(os.path.abspath(file), Function.folders):
                found.append(os.path.abspath(file))
        return found
