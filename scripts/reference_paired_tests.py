"""Paired permutation tests by scipy and Holm's correction by statsmodels, for tests/golden/paired_tests.jsonl.

    python -m venv /tmp/venv && /tmp/venv/bin/pip install scipy==1.17.1 statsmodels==0.15.0
    /tmp/venv/bin/python scripts/reference_paired_tests.py > tests/golden/paired_tests.jsonl
"""

import json
import random

import numpy
from scipy import stats
from statsmodels.stats.multitest import multipletests


def exact(differences):
    """Flips the signs of the differences in all ways."""
    result = stats.permutation_test(
        (numpy.array(differences), numpy.zeros(len(differences))),
        lambda one, other, axis=-1: numpy.mean(one - other, axis=axis),
        vectorized=True,
        permutation_type="samples",
        n_resamples=numpy.inf,
        alternative="two-sided",
    )
    return float(result.pvalue)


def main():
    draw = random.Random(7)
    shapes = [
        lambda: draw.choice([-1.0, 0.0, 1.0]),
        lambda: draw.choice([-1.0, 1.0, 1.0]),
        lambda: draw.gauss(0.3, 1.0),
        lambda: draw.randrange(-4, 9) / 8,
    ]
    for size in [2, 3, 4, 5, 8, 10, 12, 14]:
        for shape in shapes:
            differences = [shape() for _ in range(size)]
            print(json.dumps({"differences": differences, "p": exact(differences)}))
    # Of equal sizes, the number of positive signs is binomial: exact for any number of differences.
    for up, down, equal in [(20, 10, 3), (35, 15, 0), (60, 50, 40), (120, 80, 100), (33, 33, 1), (18, 4, 9)]:
        differences = [0.5] * up + [-0.5] * down + [0.0] * equal
        draw.shuffle(differences)
        print(json.dumps({"differences": differences, "p": float(stats.binomtest(up, up + down).pvalue)}))
    for values in [[0.01], [0.01, 0.04, 0.03, 0.005], [0.5, 0.5, 0.9], [0.02, 0.02, 0.02], [1.0, 0.0, 0.3, 0.02, 0.02]]:
        corrected = multipletests(values, method="holm")[1]
        print(json.dumps({"p_values": values, "holm": [float(value) for value in corrected]}))


main()
