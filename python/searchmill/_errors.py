"""What can go wrong, as exceptions. Their text is what the command line prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Diagnostic:
    """One thing that is wrong.

    >>> print(Diagnostic("there is no operator `chnk`", help="did you mean `chunk`?", at="p.yaml:3:12"))
    p.yaml:3:12: there is no operator `chnk`
      help: did you mean `chunk`?
    """

    message: str
    help: str | None = None
    #: `file:line:column`
    at: str | None = None
    code: str | None = None
    severity: str = "error"

    @classmethod
    def of(cls, told: dict[str, Any]) -> Diagnostic:
        """Reads what the program printed."""
        at = told.get("at")
        place = f"{at['file']}:{at['line']}:{at['column']}" if at else None
        return cls(told["message"], told.get("help"), place, told.get("code"), told.get("severity", "error"))

    def __str__(self) -> str:
        place = f"{self.at}: " if self.at else ""
        advice = f"\n  help: {self.help}" if self.help else ""
        return f"{place}{self.message}{advice}"


class SearchmillError(Exception):
    """A command did not end well. `exit_code` is that of the command line."""

    def __init__(self, exit_code: int, diagnostics: Sequence[Diagnostic]) -> None:
        self.exit_code = exit_code
        self.diagnostics = list(diagnostics)
        super().__init__("\n".join(map(str, self.diagnostics)) or f"searchmill ended with exit code {exit_code}")


class NodeFailed(SearchmillError):
    """A node or a check failed (exit code 1), rows were lost (3), or the budget is used up (4)."""


class UsageFailed(SearchmillError):
    """The pipeline or an argument is wrong (exit code 2)."""


class NotFound(UsageFailed):
    """The name stands for no output of the store, or for several (exit code 2)."""


class StoreFailed(SearchmillError):
    """The store could not be read or written (exit code 5)."""


class Interrupted(SearchmillError):
    """The run was stopped (exit code 130). The next one goes on there."""


def failure(exit_code: int, diagnostics: Sequence[Diagnostic]) -> SearchmillError:
    """Returns the exception of an exit code."""
    kinds: dict[int, type[SearchmillError]] = {
        1: NodeFailed,
        2: UsageFailed,
        3: NodeFailed,
        4: NodeFailed,
        5: StoreFailed,
        130: Interrupted,
    }
    return kinds.get(exit_code, SearchmillError)(exit_code, diagnostics)
