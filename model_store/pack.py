"""Pack a model folder into a real ``.mar`` with torch-model-archiver.

What a folder holds is found by convention::

    handler.py            required: one class, or a function ``handle``
    model.py              eager models: the one class that the weights belong to
    *.pt, *.pth, *.onnx   at most one file of weights; needed where there is a model.py
    model-config.yaml     TorchServe's model configuration, with our ``shunter:`` section
    requirements.txt      packages of the model
    *.json, extra/        copied beside the handler
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import symtable
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

WEIGHTS = (".onnx", ".pt", ".pth")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
"""A path of URLs and folders has it."""
_DATE = (1980, 1, 1, 0, 0, 0)


class PackError(Exception):
    """The folder cannot be packed; the message names what is missing or wrong."""


@dataclass(frozen=True)
class ModelFolder:
    """The parts of a model folder."""

    handler: Path
    model: Path | None
    weights: Path | None
    config: Path | None
    requirements: Path | None
    extra: tuple[Path, ...]


def inspect(folder: Path, *, weights_needed: bool = True) -> ModelFolder:
    """Find and check the parts of ``folder``.

    ``weights_needed``: whether a model.py has no use without; some classes make their own.
    """
    if not folder.is_dir():
        raise PackError(f"{folder} is not a folder")
    handler = folder / "handler.py"
    if not handler.is_file():
        raise PackError(f"{folder} has no handler.py")
    _check_classes(handler, or_function="handle")
    model = _optional(folder / "model.py")
    if model:
        _check_classes(model)
    config = _optional(folder / "model-config.yaml")
    if config:
        _check_config(config)
    extra = [*sorted(folder.glob("*.json"))]
    if (folder / "extra").is_dir():
        extra += sorted((folder / "extra").iterdir())
    weights = _weights(folder)
    lacks_weights = weights_needed and model is not None and weights is None
    if missing := _missing(folder, lacks_weights, config):
        advice = "; --no-weights if its code makes its own" if lacks_weights else ""
        if (folder / "archive.py").is_file():
            advice = f": this is a sample's source, run `shunter pack {folder.name}`"
        raise PackError(f"{folder} has {missing}{advice}")
    return ModelFolder(
        handler=handler,
        model=model,
        weights=weights,
        config=config,
        requirements=_optional(folder / "requirements.txt"),
        extra=tuple(extra),
    )


def pack(
    folder: Path,
    store: Path,
    *,
    name: str | None = None,
    version: str = "1.0",
    weights_needed: bool = True,
    check: Callable[[Mapping[str, Any]], None] | None = None,
) -> Path:
    """Write ``store/<name>.mar`` and return its path. The default name is the folder's.

    ``check``: what a server would refuse of the model's configuration it raises.
    """
    parts = inspect(folder, weights_needed=weights_needed)
    if check and parts.config:
        check(yaml.safe_load(parts.config.read_bytes()))
    name = name or folder.resolve().name
    if not _NAME.fullmatch(name):
        raise PackError(f"model name {name!r}: only letters, digits, '_', '.' and '-' are allowed")
    if not _VERSION.fullmatch(version) or ".." in version:
        raise PackError(
            f"version {version!r}: only letters, digits, '_', '-', '+' and single '.' are allowed"
        )
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix=".pack-") as scratch:
        gathered = _gather(parts, name, version, Path(scratch))
        finished = Path(scratch) / "finished"
        _archive(gathered, finished)
        os.replace(finished, store / f"{name}.mar")
    return store / f"{name}.mar"


def copy_config(source: Path, folder: Path, changes: dict[str, Any] | None = None) -> None:
    """Copy a model-config.yaml into ``folder``.

    ``changes`` replace top-level keys; a key with None goes away.
    """
    if not changes:
        shutil.copy(source, folder)
        return
    content = {**yaml.safe_load(source.read_text(encoding="utf-8")), **changes}
    kept = {key: value for key, value in content.items() if value is not None}
    text = yaml.safe_dump(kept, sort_keys=False)
    (folder / source.name).write_text(text, encoding="utf-8")


def with_network(source: Path, network: str | None) -> dict[str, Any] | None:
    """What :func:`copy_config` changes for workers of the network front end: ``1x1x32``."""
    if network is None:
        return None
    config = yaml.safe_load(source.read_text(encoding="utf-8"))
    return {"shunter": {**config["shunter"], "network": network}}


def _gather(parts: ModelFolder, name: str, version: str, scratch: Path) -> Path:
    """The content of the archive as a folder, with the manifest."""
    export = scratch / "export"
    export.mkdir()
    options = {
        "--model-name": name,
        "--version": version,
        "--handler": parts.handler,
        "--model-file": parts.model,
        "--serialized-file": parts.weights,
        "--config-file": parts.config,
        "--requirements-file": parts.requirements,
        "--extra-files": ",".join(map(str, parts.extra)),
        "--export-path": export,
        "--archive-format": "no-archive",
    }
    command = [sys.executable, "-m", "model_archiver.model_packaging"]
    for option, value in options.items():
        command += [option, str(value)] if value else []
    # It gathers files in $TMPDIR/<model name> and deletes what was there: give it a folder.
    staging = scratch / "staging"
    staging.mkdir()
    environment = {**os.environ, "TMPDIR": str(staging)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise PackError(f"torch-model-archiver failed on {parts.handler.parent}: {reason[0]}")
    return export / name


def _archive(gathered: Path, finished: Path) -> None:
    """Sort the entries and drop their dates, so that equal parts differ only in the manifest."""
    files = {
        path.relative_to(gathered).as_posix(): path
        for path in gathered.rglob("*")
        if path.is_file()
    }
    with zipfile.ZipFile(finished, "w") as target:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _DATE)
            # Weights hardly shrink, and take seconds to try.
            stored = files[name].suffix in WEIGHTS
            entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            target.writestr(entry, files[name].read_bytes())


def _missing(folder: Path, lacks_weights: bool, config: Path | None) -> str:
    """What the archive would lack, in words; empty when nothing."""
    if lacks_weights:
        return f"a model.py but no weights (one file *{', *'.join(WEIGHTS)})"
    section = yaml.safe_load(config.read_bytes()).get("shunter") if config else None
    sample = section.get("sample") if isinstance(section, dict) else None
    if isinstance(sample, str) and not any((folder / at / sample).exists() for at in ("", "extra")):
        return f"no {sample}, which its model-config.yaml names as an example of a request"
    return ""


def _optional(path: Path) -> Path | None:
    return path if path.is_file() else None


def _weights(folder: Path) -> Path | None:
    found = sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise PackError(f"{folder} has several files of weights ({names}); keep one")
    return found[0] if found else None


def _check_classes(module: Path, or_function: str | None = None) -> None:
    """TorchServe takes the only class of a module; it reports others only in a worker's log."""
    text = module.read_text(encoding="utf-8")
    try:  # a table and no tree: several threads that make trees at once fail in CPython 3.11
        scopes = symtable.symtable(text, module.name, "exec").get_children()
    except SyntaxError as error:
        raise PackError(f"{module}, line {error.lineno}: {error.msg}") from error
    lines = text.splitlines()
    # Not what stands in an if or a try, nor coroutines.
    own = [each for each in scopes if lines[each.get_lineno() - 1].startswith(("class ", "def "))]
    if any(each.get_name() == or_function and each.get_type() == "function" for each in own):
        return
    classes = [each.get_name() for each in own if each.get_type() == "class"]
    if len(classes) != 1:
        found = f"{len(classes)} ({', '.join(classes)})" if classes else "none"
        wanted = "one class" + (f" or a function {or_function}" if or_function else "")
        raise PackError(f"{module} must define exactly {wanted}; classes found: {found}")


def _check_config(path: Path) -> None:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise PackError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise PackError(f"{path} must be a mapping of settings, not {type(content).__name__}")
