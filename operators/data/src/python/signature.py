# Reads the types of a function for `map` from its signature, without running any of it. Only a function that is marked
# with `searchmill.map` has such types; others may say in their annotations what they like.
import ast

# Names of JSON Schema.
WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
ANY = {"Any", "object", "dict", "Dict", "Mapping"}
LISTS = {"list", "List", "Sequence"}
MANY = LISTS | {"Iterable", "Iterator", "Generator"}
MARK = "map"


class Untyped(Exception):
    """A type that no column has."""

    def __init__(self, message, line=0):
        super().__init__(message)
        self.line = line


def word(node):
    """Returns the last name of a type: `Optional` of `typing.Optional[str]`."""
    if isinstance(node, ast.Subscript):
        return word(node.value)
    return getattr(node, "attr", getattr(node, "id", None))


def arguments(node):
    """Returns what stands in the brackets of a type."""
    inside = node.slice if isinstance(node, ast.Subscript) else ast.Tuple(elts=[])
    return inside.elts if isinstance(inside, ast.Tuple) else [inside]


def plain(node):
    """Returns a type without quotes, and without what says nothing of it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            inside = ast.parse(node.value.strip(), mode="eval").body
        except SyntaxError:
            raise Untyped("`{}` is no type".format(node.value), node.lineno) from None
        for part in ast.walk(inside):
            part.lineno = node.lineno
        return plain(inside)
    if word(node) in ("Annotated", "ReadOnly") and arguments(node):
        return plain(arguments(node)[0])
    return node


def is_none(node):
    return isinstance(node, ast.Constant) and node.value is None


def choices(node):
    """Returns the types of a union."""
    node = plain(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return choices(node.left) + choices(node.right)
    if word(node) == "Union":
        return [choice for one in arguments(node) for choice in choices(one)]
    if word(node) in ("Required", "NotRequired") and arguments(node):
        return choices(arguments(node)[0])
    if word(node) == "Optional" and arguments(node):
        return choices(arguments(node)[0]) + [ast.Constant(value=None)]
    return [node]


def without_none(node):
    """Returns a type, and whether it may be None."""
    found = choices(node)
    others = [choice for choice in found if not is_none(choice)]
    if len(others) != 1:
        raise Untyped("`{}` has no column type".format(ast.unparse(node)), node.lineno)
    return others[0], len(others) < len(found)


class Types:
    """The types of a file."""

    def __init__(self, tree):
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def is_rows(self, name):
        """Whether it is a class of this file whose fields are columns."""
        return name in self.classes and self.bases(self.classes[name]) != []

    def bases(self, node, above=()):
        """Returns the names of the bases through which a class is a `TypedDict`."""
        names = [word(base) for base in node.bases]
        known = [name for name in names if name in self.classes and name not in above]
        return [
            name
            for name in names
            if name == "TypedDict" or name in known and self.bases(self.classes[name], (*above, name))
        ]

    def schema(self, name, above=()):
        """Returns the JSON Schema of a class: its fields with their types, and those that each of its dicts has."""
        if name in above:
            raise Untyped("`{}` contains itself".format(name), self.classes[name].lineno)
        node, above = self.classes[name], (*above, name)
        found, required = {}, []
        for base in self.bases(node):
            if base in self.classes:
                inherited = self.schema(base, above)
                found.update(inherited["properties"])
                required += inherited["required"]
        partial = any(key.arg == "total" and getattr(key.value, "value", True) is False for key in node.keywords)
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                field, kind = line.target.id, plain(line.annotation)
                found[field] = self.column(kind, above)
                is_required = word(kind) == "Required" or not partial and word(kind) != "NotRequired"
                required = [other for other in required if other != field] + [field] * is_required
        if not found:
            raise Untyped("`{}` has no fields".format(name), node.lineno)
        return {"type": "object", "properties": found, "required": required}

    def column(self, node, above):
        """Returns the JSON Schema of a column's values."""
        inner, optional = without_none(node)
        found, name, inside = None, word(inner), arguments(inner)
        if name in ANY:
            return {}
        if name in WORDS and not inside:
            found = {"type": WORDS[name]}
        elif name in LISTS and len(inside) == 1:
            found = {"type": "array", "items": self.column(inside[0], above)}
        elif name == "Literal" and all(isinstance(getattr(one, "value", None), str) for one in inside):
            found = {"enum": [one.value for one in inside]}
        elif self.is_rows(name):
            found = self.schema(name, above)
        if found is None:
            raise Untyped(self.why_not(inner, name), node.lineno)
        return {"anyOf": [found, {"type": "null"}]} if optional else found

    def why_not(self, node, name):
        if isinstance(node, ast.Name) and node.id[:1].isupper() and name not in self.classes:
            return "`{}` is no class of this file".format(node.id)
        return "`{}` has no column type".format(ast.unparse(node))

    def rows(self, function):
        """Returns the JSON Schema of the rows that a function returns."""
        if function.returns is None:
            raise Untyped("`{}` does not say what it returns".format(function.name), function.lineno)
        inner, _ = without_none(function.returns)
        if word(inner) in MANY and arguments(inner):
            inner, _ = without_none(arguments(inner)[0])
        name = word(inner)
        if not self.is_rows(name):
            raise Untyped(self.why_not(inner, name), inner.lineno)
        return self.schema(name)

    def takes(self, function):
        """Returns the types of the arguments that have one."""
        found = {}
        for one in function.args.args + function.args.kwonlyargs:
            try:
                kind = self.column(one.annotation, ()) if one.annotation is not None else {}
            except Untyped:
                # What is passed may be more than a column can be.
                continue
            kind = kind["anyOf"][0] if "anyOf" in kind else kind
            found[one.arg] = "string" if "enum" in kind else kind.get("type", "")
        return found


def is_marked(tree, node):
    """Whether a decorator is `searchmill.map`, under the name that the file gives it."""
    modules, names = set(), set()
    for line in ast.walk(tree):
        if isinstance(line, ast.Import):
            modules.update(alias.asname or alias.name for alias in line.names if alias.name == "searchmill")
        elif isinstance(line, ast.ImportFrom) and line.module == "searchmill" and line.level == 0:
            names.update(alias.asname or alias.name for alias in line.names if alias.name == MARK)
    for mark in node.decorator_list:
        if isinstance(mark, ast.Name) and mark.id in names:
            return True
        if isinstance(mark, ast.Attribute) and mark.attr == MARK and getattr(mark.value, "id", None) in modules:
            return True
    return False


def signature(tree, name):
    """Returns the types of a marked function or class; `None` of others. `output` is a JSON Schema, `takes` has the
    types of arguments in its words; empty for any."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [node for node in tree.body if isinstance(node, kinds) and node.name == name]
    if not found or not is_marked(tree, found[-1]):
        return None
    node, types = found[-1], Types(tree)
    try:
        if isinstance(node, ast.ClassDef):
            calls = [one for one in node.body if isinstance(one, kinds[:2]) and one.name == "__call__"]
            if not calls:
                raise Untyped("the class `{}` has no method `__call__`".format(name), node.lineno)
            node = calls[-1]
        return {"output": types.rows(node), "takes": types.takes(node), "wrong": None}
    except Untyped as untyped:
        return {"output": {}, "takes": {}, "wrong": {"message": str(untyped), "line": untyped.line}}
