"""Functions that a pipeline calls with each row."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def map(function: Function) -> Function:
    """Marks a function, or a class whose objects are called, for the operator `map`: its signature types its columns.

    It returns a `TypedDict` of its own file, or a list or an iterator of them, or None. The fields are the columns:
    `str`, `int`, `float`, `bool`, a list, another `TypedDict`, a `Literal` of texts, and `dict` or `Any` for any JSON;
    each may be `Optional` or `NotRequired`. A pipeline then needs no `output`, and a column of another type than
    an argument's is refused before the first call. The program reads this from the text of the file; the function
    itself stays as it is.

    >>> from typing import TypedDict
    >>> class Counted(TypedDict):
    ...     words: int
    >>> @map
    ... def count(text: str) -> Counted:
    ...     return {"words": len(text.split())}
    >>> count("two words")
    {'words': 2}
    """
    return function
