"""What TorchServe's service has loaded, in the words of those who know no server."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

from ts.service import Service

from shunter.handlers.queue.loaded_model import LoadedModel
from shunter.handlers.queue.tensor_config import is_of_bodies
from shunter.handlers.sample import section_of


def loaded_model(service: Service, *, takes_bodies: bool = False) -> LoadedModel:
    """The model of a service, for a worker of a front end.

    ``takes_bodies``: one that declares no tensors gets requests as TorchServe has them.
    """
    context = service.context
    section = section_of(context.model_yaml_config)
    if takes_bodies and is_of_bodies(section):
        from shunter.handlers.torchserve.bodies import Bodies

        batch = context.system_properties["batch_size"]
        return LoadedModel(context.model_name, section, batch, Bodies(service), of_bodies=True)
    return LoadedModel(
        name=context.model_name,
        section=section,
        batch=context.system_properties["batch_size"],
        handler=getattr(service._entry_point, "__self__", None),
        gpu=context.system_properties.get("gpu_id"),
    )


def holder_of_models(service: Service) -> Any:
    """Whose attributes are the models: the handler, or the module of one that is a function."""
    entry = service._entry_point
    owner = getattr(entry, "__self__", None)
    return owner if owner is not None else sys.modules.get(getattr(entry, "__module__", ""))


def keep_requests(inputs: Any, context: Any) -> Callable[[], tuple[Any, Any]]:
    """What gives a batch as it is now, whatever its handler changes meanwhile."""
    kept, processors = copy.deepcopy((inputs, context.request_processor))

    def again() -> tuple[Any, Any]:
        context.request_processor = processors  # headers of requests, and those of answers
        return kept, context

    return again
