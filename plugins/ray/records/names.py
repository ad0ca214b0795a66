"""What is called how in Ray, and whether there is a Ray at all."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any

from shunter.plugins.errors import UserError

NAMESPACE = "shunter"
CONTROLLER = "controller"
MACHINE_RESOURCE = "shunter_machine"
"""A node that has one runs a model server."""
HEAD_RESOURCE = "node:__internal_head__"
"""Ray gives it to its head."""
SLICE_RESOURCE = "shunter_slice_"
"""With the name of the slice: what the node had when it started."""
NODE_VARIABLE = "SHUNTER_CLUSTER_NODE"
"""In the environment of a node's processes: JSON of what is particular to this node."""
INSTALL = "pip install 'shunter[cluster]', and 'shunter[aws]' for machines of Amazon's"


def require_ray(*others: str) -> None:
    """Raises UserError where Ray, what the gateways need, or another package is not installed."""
    needed = ("ray", "aiohttp", "uvicorn", *others)
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    if missing:
        raise UserError(f"a cluster needs {' and '.join(missing)}: {INSTALL}")


def here() -> dict[str, Any]:
    """What is particular to the node of this process."""
    return dict(json.loads(os.environ.get(NODE_VARIABLE, "{}")))


def machine_actor(node_id: str) -> str:
    """Name of the actor of a node's machine."""
    return f"machine-{node_id}"


def gateway_actor(number: int) -> str:
    """Name of the actor of a gateway."""
    return f"gateway-{number}"
