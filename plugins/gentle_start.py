"""How a worker starts beside others that serve: with a small share from its first instruction.

Before it takes its place a Python has to start and to import, which are 0.1 s of a CPU: two threads
of a worker that wait for each other, beside it, lose most of them. Less than a small share would be
too little: on a host that has nothing to spare it would get 0.3 %, with nobody there to lose
patience, and then locks would be taken that others wait for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import MutableMapping

from shunter.handlers.placement.gentle import EARLY, GENTLE_VARIABLE, SMALL, can_return_from_idle
from shunter.handlers.pool.seat import POOL


def starter(environ: MutableMapping[str, str]) -> list[str]:
    """What the command of a worker with this environment begins with, which is told there.

    Nothing, and it has the usual share, where ``SHUNTER_GENTLE`` does not say otherwise; where it
    could not come back, which is to be tried, for a container may show privileges that it lacks;
    where an operator has chosen a share; for the seat of a pool process, which others need.
    """
    program = shutil.which("nice")
    if environ.get(GENTLE_VARIABLE) != "1" or environ.get(POOL) or not program:
        return []
    if os.getpriority(os.PRIO_PROCESS, 0) != 0 or not can_return_from_idle():
        return []
    environ[GENTLE_VARIABLE] = EARLY
    return [program, "-n", str(SMALL)]


def main() -> None:
    """Say it to a server in another language, one argument per line."""
    print(*starter({GENTLE_VARIABLE: "1"}), sep="\n")
