"""A model archive (``.mar``), as TorchServe unpacks it."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shunter.handlers.sample import Sample, SampleError, sample_of, section_of
from shunter.plugins.errors import UserError

# What reading a file that is not a model archive, or a damaged one, may raise.
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, yaml.YAMLError),
)


@dataclass(frozen=True)
class UnpackedModel:
    """An archive as TorchServe unpacks it."""

    name: str
    folder: Path
    handler: str
    config: Mapping[str, Any]
    version: str = "1.0"

    @property
    def section(self) -> Mapping[str, Any]:
        """The ``shunter:`` section of the model's configuration."""
        return section_of(self.config)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that its workers get (``shunter: {environment: {NAME: VALUE}}``)."""
        found = self.section.get("environment")
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}

    def sample(self) -> Sample | None:
        """The archive's own example of a request (``shunter: {sample: FILE}``)."""
        try:
            return sample_of(self.folder, self.section)
        except SampleError as error:
            raise UserError(f"{self.name}: {error}") from error


def unpack(archive: Path, folder: Path) -> UnpackedModel:
    """Unpack a ``.mar`` into ``folder``. Raises UserError when that cannot be done."""
    try:
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
        manifest = json.loads((folder / "MAR-INF/MANIFEST.json").read_bytes())
        model = manifest["model"]
        name, handler = str(model["modelName"]), str(model["handler"])
        config_name = model.get("configFile")
        config = yaml.safe_load((folder / config_name).read_bytes()) if config_name else {}
    except _DAMAGE as error:
        raise UserError(f"{archive} cannot be read as a model archive: {error}") from error
    found = config if isinstance(config, dict) else {}
    return UnpackedModel(name, folder, handler, found, str(model.get("modelVersion", "1.0")))
