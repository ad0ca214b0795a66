"""A worker without torch, where its handler does not use it: it starts sooner and is smaller.

Of what every worker imports, one module of TorchServe's imports torch, to recognise a tensor among
results.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_PROTOCOL = "ts.protocol.otf_message_handler"


class _Later(ModuleType):
    """Stands for a module that is imported when something of it is wanted."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def import_protocol() -> None:
    """Import that module; before any other one of TorchServe's, for they need it."""
    if "torch" in sys.modules or _PROTOCOL in sys.modules:
        return
    sys.modules["torch"] = _Later("torch")
    try:
        importlib.import_module(_PROTOCOL)
    finally:
        del sys.modules["torch"]


def is_tensor(value: object) -> bool:
    """Whether it is one of torch's; without torch, or while it is imported, nothing is."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))
