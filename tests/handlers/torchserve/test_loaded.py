"""TorchServe's service as what the gate and the network front end's link ask for."""

import copy
import sys
from types import SimpleNamespace

from ts.context import RequestProcessor

from shunter.handlers.torchserve.loaded import holder_of_models, keep_requests, loaded_model


class Handler:
    def handle(self, data, context):
        return data


def handle(data, context):
    return data


def service_of(entry_point, config=None):
    properties = {"batch_size": 4, "gpu_id": 1}
    context = SimpleNamespace(
        model_name="m", model_yaml_config=config, system_properties=properties
    )
    return SimpleNamespace(_entry_point=entry_point, context=context)


def test_what_a_service_has_loaded_is_told_without_it():
    handler = Handler()
    model = loaded_model(service_of(handler.handle, {"shunter": {"slo_ms": 5}}))
    assert (model.name, model.section, model.batch, model.gpu) == ("m", {"slo_ms": 5}, 4, 1)
    assert model.handler is handler


def test_models_are_the_handlers_or_those_of_the_module_of_a_function():
    handler = Handler()
    assert holder_of_models(service_of(handler.handle)) is handler
    assert holder_of_models(service_of(handle)) is sys.modules[__name__]
    assert loaded_model(service_of(handle)).handler is None


def test_a_kept_batch_is_as_it_came_whatever_its_handler_changed():
    context = SimpleNamespace(request_processor=[RequestProcessor({"a": "1"})])
    again = keep_requests([{"body": bytearray(b"xy")}, {"body": {"n": [1, 2]}}], context)
    inputs = again()[0]
    kept = copy.deepcopy(inputs)
    given, used = copy.deepcopy(inputs), context.request_processor
    again = keep_requests(given, context)
    given[0]["body"][:] = b"zz"
    given[1].pop("body")["n"].clear()
    used[0].get_request_properties().clear()
    used[0].add_response_property("from", "the first run")
    inputs, found = again()
    assert found is context
    assert inputs == kept
    assert context.request_processor[0].get_request_properties() == {"a": "1"}
    assert context.request_processor[0].get_response_headers() == {}
