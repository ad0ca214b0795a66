"""A model's example of a request: ``shunter: {sample: FILE}`` in its ``model-config.yaml``.

Its latency is measured with it, and new workers warm up with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTENT_TYPES = {
    ".json": "application/json",
    ".txt": "text/plain",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
}


class SampleError(ValueError):
    """The file that is named cannot be had."""


@dataclass(frozen=True)
class Sample:
    """The body of one request."""

    body: bytes
    content_type: str = "application/octet-stream"

    @classmethod
    def read(cls, path: Path, content_type: str | None = None) -> Sample:
        """The content of a file; its type by its name."""
        known = CONTENT_TYPES.get(path.suffix.lower(), "application/octet-stream")
        return cls(path.read_bytes(), content_type or known)


def section_of(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The ``shunter:`` section of a model's configuration; empty when it has none."""
    found = (config or {}).get("shunter")
    return found if isinstance(found, dict) else {}


def sample_of(folder: Path, section: Mapping[str, Any]) -> Sample | None:
    """The example of an unpacked archive, None when it names none.

    Raises SampleError when the file is not there, or lies outside of the archive.
    """
    name = section.get("sample")
    if not name:
        return None
    try:
        path = (folder / str(name)).resolve()
        path.relative_to(folder.resolve())
        return Sample.read(path)
    except (OSError, ValueError) as error:
        raise SampleError(
            f"shunter: {{sample: {name}}} is no file of the archive: {error}"
        ) from error
