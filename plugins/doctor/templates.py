"""Files to begin with: every setting with its default and its meaning, commented out. Pure."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from shunter.allocator.planning.allowed import allowed
from shunter.plugins.control import settings_keys

_WIDTH = 98
_EXAMPLES = {"models": "resnet"}
"""Sections that are for something with a name."""


def sections() -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Of ``shunter.toml``: name, record and keys with what is known of each; a key that a section
    has from another one is only there."""
    for name, field in settings_keys.Settings.__pydantic_fields__.items():
        record = settings_keys.ModelSettings if name == "models" else field.annotation
        keys = record.__pydantic_fields__
        if name == "models":
            inherited = settings_keys.BatchingSettings.__pydantic_fields__
            keys = {key: each for key, each in keys.items() if key not in inherited}
        yield name, record, keys


def default_of(field: Any) -> str | None:
    """As TOML and JSON have it; None: there is no default."""
    value = field.get_default(call_default_factory=True)
    if value is None or value == () or value == ((), ()):
        return None
    number = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if number else value)


def prose(text: str) -> str:
    """One paragraph per blank line, single backticks, no roles of reStructuredText."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()))


def settings_text() -> str:
    """A ``shunter.toml`` that changes nothing until a line is uncommented."""
    lines = [
        "# Settings of Shunter. What is commented out is the default; SIGHUP to the controller",
        "# (`shunter status` names its pid) has the file read again. Keys of [batching] may stand",
        "# in [models.NAME], too.",
        "",
    ]
    for name, record, keys in sections():
        lines += _comment(prose(inspect.getdoc(record) or ""))
        example = _EXAMPLES.get(name)
        lines.append(f"#[{name}.{example}]" if example else f"[{name}]")
        for key, field in keys.items():
            lines += _comment(f"{prose(field.description or '')} Allowed: {allowed(record, key)}.")
            default = default_of(field)
            lines.append(f"#{key} =" + (f" {default}" if default else "   # not set"))
        lines.append("")
    return "\n".join(lines)


def _comment(text: str) -> list[str]:
    found = []
    for paragraph in text.split("\n\n"):
        found += textwrap.wrap(paragraph, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    return found
