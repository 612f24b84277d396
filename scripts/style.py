#!/usr/bin/env python3
"""Prints how dense the Rust sources read: a table of crates, and the densest files. A mirror, no gate.

    scripts/style.py              # this project
    scripts/style.py DIR [DIR …]  # other trees, for comparison

Product lines are lines of code without tests, comments and blank lines. All figures but the last are per 1,000 of them:
combinator calls (`map`, `filter_map`, `and_then` …), closures bound to a name, `//` comments inside code. Tuple parameters
(`(a, b): (A, B)`) are counted.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMBINATORS = re.compile(
    r"\.(map|map_or|map_or_else|map_err|and_then|or_else|filter|filter_map|flat_map|flatten|find_map|fold|zip|then"
    r"|then_some|is_some_and|is_none_or|is_ok_and|take_while|skip_while|unwrap_or_else|ok_or_else)\("
)
NAMED_CLOSURE = re.compile(r"\blet (mut )?\w+(: [^=]+)? =\s*(move )?\|")
TUPLE_PARAMETER = re.compile(r"[(,]\s*\((?:mut )?\w+(?:, (?:mut )?\w+)+\): \(")
TEST_FILE = re.compile(r"(^|/)(tests?|benches|examples|fixtures|testdata|integration-tests)/|(tests?|fuzz|test_\w+)\.rs$")
CRATES = ["engine", "operators", "operators/agent", "operators/retrieval", "operators/models", "operators/kernels"]
CRATES += ["operators/data", "operators/text", "operators/world", "schemas", "."]


class Figures:
    """Counts of one file, or the sum of several."""

    def __init__(self):
        self.lines = self.combinators = self.closures = self.comments = self.tuples = 0

    def add(self, other):
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def share(self, count):
        return 1000 * count / max(self.lines, 1)

    def density(self):
        return self.share(self.combinators + self.closures + 2 * self.tuples)

    def row(self, name):
        shares = [self.share(self.combinators), self.share(self.closures), self.share(self.comments)]
        return [name, str(self.lines), *(f"{share:.1f}" for share in shares), str(self.tuples)]


def measure(text):
    """Counts the code before the tests of a file."""
    code = re.split(r"^#\[cfg\(test\)\]\n(?:#\[[^\n]*\]\n)*mod \w+ \{", text, maxsplit=1, flags=re.M)[0]
    found = Figures()
    lines = []
    for line in code.splitlines():
        bare = line.strip()
        if not bare or bare.startswith(("///", "//!")):
            continue
        if bare.startswith("//"):
            found.comments += 1
            continue
        # A comment behind code counts, an address in a text does not.
        if re.search(r'[;{},)] // ', line):
            found.comments += 1
        lines.append(line)
    joined = "\n".join(lines)
    found.lines = len(lines)
    found.combinators = len(COMBINATORS.findall(joined))
    found.closures = len(NAMED_CLOSURE.findall(joined))
    found.tuples = len(TUPLE_PARAMETER.findall(joined))
    return found


def files_of(folder):
    """Finds the product files below a folder; those of crates inside it are theirs."""
    for path in sorted(folder.rglob("*.rs")):
        name = path.relative_to(folder).as_posix()
        if not TEST_FILE.search(name) and not name.startswith("target/") and "/target/" not in name:
            yield path


def total(paths):
    sum_of = Figures()
    for path in paths:
        sum_of.add(measure(path.read_text(encoding="utf-8")))
    return sum_of


def print_table(header, rows):
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        cells = [cell.ljust(width) if place == 0 else cell.rjust(width) for place, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())


def main():
    header = ["", "lines", "combinators", "closures", "comments", "tuple params"]
    if sys.argv[1:]:
        print_table(header, [total(files_of(Path(name))).row(name) for name in sys.argv[1:]])
        return
    own = {}
    for crate in CRATES:
        own[crate] = list(files_of(ROOT / crate / "src"))
    everything = [path for paths in own.values() for path in paths]
    rows = [total(paths).row("src" if crate == "." else crate) for crate, paths in own.items()]
    rows.append(total(everything).row("all"))
    print_table(header, rows)
    measured = [(measure(path.read_text(encoding="utf-8")), path) for path in everything]
    dense = [(found, path) for found, path in measured if found.lines >= 40]
    dense.sort(key=lambda pair: pair[0].density(), reverse=True)
    print("\nThe densest files (combinators, named closures and tuple parameters by line):\n")
    print_table(header, [found.row(path.relative_to(ROOT).as_posix()) for found, path in dense[:50]])


if __name__ == "__main__":
    main()
