"""What is of the process that made it: a child that is forked leaves it to its parent."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Owned(Protocol):
    """What a child must not go on with as it is."""

    def leave_to_parent(self) -> None:
        """Called in the child."""


OWNED: weakref.WeakSet[Owned] = weakref.WeakSet()
"""All of this process. Who is made joins them when it is whole: another thread may fork before."""


def _leave_to_parent() -> None:
    for each in list(OWNED):
        each.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
