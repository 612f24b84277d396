# Turns what a function returned for one row into JSON, or says which column does not fit.
import json

# Largest result of one row, in bytes.
MOST_BYTES = 64 << 20
SMALLEST, LARGEST = -(1 << 63), (1 << 64) - 1
REMEDIES = {
    "set": "`sorted(value)`",
    "frozenset": "`sorted(value)`",
    "bytes": "`value.decode()`",
    "Decimal": "`str(value)`",
    "datetime": "`value.isoformat()`",
    "date": "`value.isoformat()`",
    "time": "`value.isoformat()`",
}
encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Unfit(Exception):
    """What the function returned cannot be a row."""


def is_mapping(value):
    return hasattr(value, "keys") and hasattr(value, "__getitem__")


def rows_of(result):
    """Returns what the function returned as an iterable of rows."""
    if is_mapping(result):
        return (result,)
    if result is None:
        return ()
    if isinstance(result, (str, bytes)) or not hasattr(result, "__iter__"):
        raise Unfit("the function returned {}: return a dict, a list of dicts, or None".format(described(result)))
    return result


def encoded(result):
    """Returns a row as a JSON object behind `=`, or several as a JSON array."""
    is_row = is_mapping(result)
    texts, size = [], 0
    for row in rows_of(result):
        if type(row) is not dict:
            if not is_mapping(row):
                raise Unfit("the function returned a list with {}: return dicts".format(described(row)))
            row = dict(row)
        characters = 0
        for name, value in row.items():
            if type(name) is not str:
                raise Unfit("the name of a column is {}: return text".format(described(name)))
            kind = type(value)
            if kind is str:
                characters += len(value)
            elif kind is int and not SMALLEST <= value <= LARGEST:
                raise Unfit(fault(value, name))
        if size + characters > MOST_BYTES:
            raise Unfit(too_large())
        try:
            text = encode_json(row).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise Unfit(faults(row) or str(error)) from None
        texts.append(text)
        # Endless empty rows count, too.
        size += max(len(text), 64)
        if size > MOST_BYTES:
            raise Unfit(too_large())
    return b"=" + texts[0] if is_row else b"[" + b",".join(texts) + b"]"


def too_large():
    return "the function returned more than {} MiB for one row".format(MOST_BYTES >> 20)


def faults(row):
    try:
        return next((found for name, value in row.items() for found in [fault(value, name)] if found), None)
    except RecursionError:
        return "a column contains itself, or is nested too deeply"


def fault(value, path):
    """Returns what is wrong with a value, or `None`. `path` is its column and its place in it."""
    what = wrong(value)
    if what:
        return "column `{}` {}".format(path, what)
    items = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    found = (fault(item, "{}.{}".format(path, name)) for name, item in items)
    return next((one for one in found if one), None)


def wrong(value):
    """Returns why a value is not JSON; lists and dicts are not searched."""
    kind = type(value)
    if value is None or kind is bool:
        return None
    if kind.__module__.partition(".")[0] == "numpy":
        remedy = "tolist" if getattr(value, "shape", ()) else "item"
        return "is {}: return `value.{}()`".format(described(value), remedy)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "is not valid Unicode: return `value.encode(\"utf-8\", \"replace\").decode()`"
        return None
    if isinstance(value, int):
        return None if SMALLEST <= value <= LARGEST else "is an integer of more than 64 bits: return it as text"
    if isinstance(value, float):
        if value - value == 0:
            return None
        return "is {}: return a finite number, or None for a type such as `float?`".format(
            "NaN" if value != value else "infinite")
    if isinstance(value, dict):
        name = next((name for name in value if not isinstance(name, str)), None)
        return None if name is None else "has a key that is {}: use text as keys".format(described(name))
    if isinstance(value, (list, tuple)):
        return None
    remedy = REMEDIES.get(kind.__name__, "text, numbers, lists and dicts")
    return "is {}: return {}".format(described(value), remedy)


def described(value):
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else "{}.{}".format(kind.__module__, kind.__qualname__)
    return "{} {}".format("an" if name[:1] in "aeiou" else "a", name)
