"""Non-negative least squares after Lawson and Hanson, with bounds from above on some rows. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def solve(
    equal: Matrix, is_value: Matrix, below: Matrix, is_most: Matrix, rounds: int = 1000
) -> Matrix:
    """The x >= 0 with the least ``|equal x - is_value|² + |max(below x - is_most, 0)|²``.

    What a row of ``below`` leaves free under its bound costs nothing. With a slack for each such
    row that is an ordinary problem of non-negative least squares.
    """
    count = below.shape[0]
    rows = np.vstack(
        [
            np.hstack([equal, np.zeros((equal.shape[0], count))]),
            np.hstack([below, np.eye(count)]),
        ]
    )
    return non_negative(rows, np.concatenate([is_value, is_most]), rounds)[: equal.shape[1]]


def non_negative(rows: Matrix, values: Matrix, rounds: int = 1000) -> Matrix:
    """The x >= 0 with the least ``|rows x - values|²``; one of them where there are several."""
    count = rows.shape[1]
    x, free = np.zeros(count), np.zeros(count, dtype=bool)
    small = 1e-10 * max(1.0, float(np.abs(rows).max(initial=0.0)) ** 2 * max(1, rows.shape[0]))
    for _ in range(rounds):
        pull = rows.T @ (values - rows @ x)
        pull[free] = -np.inf
        best = int(np.argmax(pull)) if count else 0
        if not count or pull[best] <= small:
            break
        free[best] = True
        x = _settle(rows, values, x, free)
    return x


def _settle(rows: Matrix, values: Matrix, x: Matrix, free: NDArray[np.bool_]) -> Matrix:
    """Best values of the free ones; those that would fall below zero are given up in turn."""
    while True:
        wanted = np.zeros_like(x)
        wanted[free] = np.linalg.lstsq(rows[:, free], values, rcond=None)[0]
        falling = free & (wanted <= 0)
        if not falling.any():
            return wanted
        # As far towards it as none of them gets below zero.
        gap = x[falling] - wanted[falling]
        step = float(np.min(np.divide(x[falling], gap, out=np.zeros_like(gap), where=gap > 0)))
        x = x + step * (wanted - x)
        free &= ~(falling & (x <= 1e-12))
        x[~free] = 0.0
