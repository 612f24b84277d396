"""searchmill from Python: run pipelines, and read what they made.

Every call asks the program `searchmill`, which this package brings along, so a notebook and the command line see the
same store. Needs no other package; `load(...).to_arrow()` needs pyarrow, `.to_pandas()` pandas, and so on.

>>> import searchmill as sm
>>> sm.run("pipelines/quickstart.yaml", targets=["train_file"])  # doctest: +SKIP
>>> sm.load("rollouts").to_pandas()  # doctest: +SKIP
"""

from ._errors import Diagnostic, Interrupted, NodeFailed, NotFound, SearchmillError, StoreFailed, UsageFailed
from ._look import Difference, Plan, Runs, Trace, Why, diff, plan, runs, trace, why
from ._map import map
from ._page import Link, Page, ui
from ._rows import Output, Rows, load, output
from ._run import Node, Run, Running, run, start

__all__ = [
    "Diagnostic",
    "Difference",
    "Interrupted",
    "Link",
    "Node",
    "NodeFailed",
    "NotFound",
    "Output",
    "Page",
    "Plan",
    "Rows",
    "Run",
    "Running",
    "Runs",
    "SearchmillError",
    "StoreFailed",
    "Trace",
    "UsageFailed",
    "Why",
    "diff",
    "load",
    "map",
    "output",
    "plan",
    "run",
    "runs",
    "start",
    "trace",
    "ui",
    "why",
]
