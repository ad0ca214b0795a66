"""What the ``config.pbtxt`` of an existing model needs for batches by the strategy library."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shunter.plugins.errors import UserError
from shunter.plugins.triton.layout import PAGE_PARAMETER

CONFIG = "config.pbtxt"
KEPT = "config.pbtxt.before-shunter"
PAGES = Path("/dev/shm")
"""Not in the model's folder, where Triton may look for changes."""
LONGEST = 511
"""Bytes of a page's path, as the library has room."""
_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"


@dataclass(frozen=True)
class Preparation:
    """Lines to add to a model's configuration, and what to know before."""

    config: Path
    text: str
    """Of now."""
    lines: tuple[str, ...]
    """To add at its end; none: it is prepared."""
    advice: tuple[str, ...]

    def write(self) -> Path | None:
        """Add them; where the file of before is kept. Raises UserError."""
        if not self.lines:
            return None
        kept, draft = self.config.with_name(KEPT), self.config.with_name(f".{CONFIG}.{os.getpid()}")
        try:
            kept.write_text(self.text, encoding="utf-8")
            draft.write_text("\n".join([self.text.rstrip("\n"), *self.lines, ""]), encoding="utf-8")
            draft.replace(self.config)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise UserError(f"{self.config} cannot be written: {error.strerror}") from error
        return kept


def usual_page(name: str) -> Path:
    """Where the page of a model lies, unless somebody says otherwise."""
    return PAGES / f"shunter-page-{name.replace('/', '_')}"


def prepare(folder: Path, library: Path, page: Path | None) -> Preparation:
    """For the model in that folder of a repository; nothing is changed. Raises UserError.

    ``library`` and ``page``: paths as Triton sees them.
    """
    path = folder / CONFIG
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}; name the folder of a model") from error
    config = _parsed(path, text)
    _check(config, path)
    present = {key: each.string_value for key, each in config.parameters.items()}
    usual = usual_page(config.name or folder.resolve().name)
    page = page or Path(present.get(PAGE_PARAMETER) or usual)
    if len(os.fsencode(page)) > LONGEST or any(each in str(page) for each in '"\\\n'):
        raise UserError(f"{page}: a page's path has at most {LONGEST} bytes, no quotes, no \\")
    wanted = {_STRATEGY: str(library), PAGE_PARAMETER: str(page)}
    lines = [] if config.HasField("dynamic_batching") else ["dynamic_batching { }"]
    for key, value in wanted.items():
        if present.get(key, value) != value:
            raise UserError(f"{path}: {key} is {present[key]!r} already; remove it, or leave it so")
        if key not in present:
            lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
    return Preparation(path, text, tuple(lines), tuple(_advice(config)))


def _parsed(path: Path, text: str) -> Any:
    try:
        from google.protobuf import text_format
        from tritonclient.grpc import model_config_pb2
    except ImportError as error:
        raise UserError(
            "configurations are read by Triton's client: pip install 'shunter[triton]'"
        ) from error
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise UserError(f"{path} is no configuration of a model: {error}") from error


def _check(config: Any, path: Path) -> None:
    kind = config.WhichOneof("scheduling_choice")
    if kind not in (None, "dynamic_batching"):
        raise UserError(f"{path}: {kind}: the library is for models with Triton's dynamic batcher")
    if config.max_batch_size == 1:
        raise UserError(f"{path}: max_batch_size 1: there are no batches to form")


def _advice(config: Any) -> list[str]:
    found = []
    batching = config.dynamic_batching
    if config.max_batch_size == 0:
        found.append("max_batch_size is not said: unless its backend finds one, nothing is batched")
    if batching.max_queue_delay_microseconds:
        found.append(
            "max_queue_delay_microseconds: Triton seals a full batch only when another request "
            "comes, and merges batches; set it to 0"
        )
    if batching.priority_levels < 2:
        found.append(
            "priority_levels: without them strict and best-effort requests alternate in Triton's "
            "queue, and batches of one class are small; see the guide, or control it by "
            "--mix-classes"
        )
    groups = config.instance_group
    cpu = config.instance_group and groups[0].kind == type(groups[0]).KIND_CPU
    if len(groups) != 1 or not cpu:
        found.append(
            "the number of instances is changed only of models with one instance_group, of KIND_CPU"
        )
    return found
