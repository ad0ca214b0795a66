"""Model archives, written directly: torch-model-archiver takes a second for each."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from shunter.allocator.planning.profile import Cell, Profile
from shunter.plugins.profiling.profiles import profile_path, provenance_here, write_profile

MODELS = Path(__file__).parent / "models"


class Archives:
    """A model store that is filled as tests need it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        name: str,
        handler: str = "echo",
        *,
        version: str = "1.0",
        config: Mapping[str, Any] | None = None,
        model: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> str:
        """Write an archive; return its file name. ``model`` adds keys to the manifest's model."""
        described = {"modelName": name, "modelVersion": version, "handler": f"{handler}.py"}
        content = {f"{handler}.py": (MODELS / f"{handler}.py").read_bytes(), **(files or {})}
        if config is not None:
            described["configFile"] = "model-config.yaml"
            content["model-config.yaml"] = yaml.safe_dump(dict(config)).encode()
        manifest = {
            "createdOn": "01/01/2024 00:00:00",
            "runtime": "python",
            "model": {**described, **(model or {})},
            "archiverVersion": "0.12.0",
        }
        file = f"{name}-{version}.mar"
        with zipfile.ZipFile(self.folder / file, "w") as archive:
            archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
            for path, data in content.items():
                archive.writestr(path, data)
        return file

    def add_profile(self, file: str, latencies: Mapping[tuple[int, int], float]) -> None:
        """Write a profile of an archive: ms by ⟨threads, batch⟩."""
        path = self.folder / file
        cells = {key: Cell(*key, ms, ms, ms, runs=9) for key, ms in latencies.items()}
        threads, batch = (max(key[i] for key in cells) for i in (0, 1))
        profile = Profile(provenance_here(path), threads, batch, "exhaustive", cells)
        write_profile(profile_path(path), profile.finished(None))
