"""The shunter.toml of the servers under test: of models by these names nothing but the rule under
test moves the order of execution."""

from __future__ import annotations

import json
from typing import Any

NAMED: dict[str, dict[str, Any]] = {
    "ordered": {"ahead": 0, "ageing_ms": 0},
    "unhurried": {"ageing_ms": 0},
    "ageing": {"ahead": 0, "ageing_ms": 300},
    "ageing-ahead": {"ageing_ms": 300},
    "admitting": {"admission": True},
    "mixing": {"ahead": 0, "mix_classes": True},
    "patient": {"threshold": 4},
}
SHARED = """
[preemption]
max_hold_ms = 5000  # what a test holds is held for as long as it looks at it

# Profiled models change at once.
[configuration]
timeout_s = 1
"""


def settings_text(copies: int = 0) -> str:
    """``copies``: models of each name have a number behind it."""
    lines = [SHARED]
    for name, settings in NAMED.items():
        for each in [f"{name}-{n}" for n in range(copies)] if copies else [name]:
            lines.append(f"[models.{each}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    return "\n".join(lines) + "\n"
