"""Packed models, loaded and asked as a worker of TorchServe does it."""

import json
import sys
import tempfile
import zipfile
from contextlib import contextmanager

import pytest
import torch

MODULES = ("handler", "model")
"""What an archive brings under its own name."""


class Metrics:
    """Takes what a handler measures and forgets it."""

    def set_request_ids(self, ids):
        pass

    def add_time(self, *values):
        pass


class Loaded:
    """A loaded model."""

    def __init__(self, service):
        self._service = service

    @property
    def settings(self):
        """Its model-config.yaml."""
        return self._service.context.model_yaml_config

    def describe(self):
        """What it says of itself."""
        [answer], _ = self._ask([{}], {"describe": "True"})
        return answer

    def predict(self, bodies):
        """Answers and statuses of one batch."""
        return self._ask([{"body": body} for body in bodies], {})

    def _ask(self, inputs, headers):
        from ts.context import RequestProcessor

        context = self._service.context
        context.request_processor = [RequestProcessor(dict(headers)) for _ in inputs]
        context.metrics = Metrics()
        answers = self._service._entry_point(inputs, context)
        parsed = [json.loads(each) if isinstance(each, str) else each for each in answers]
        return parsed, [each.get_response_status_code() for each in context.request_processor]


@pytest.fixture
def ask_own_sample(tmp_path):
    """Sends an archive's own example of a request to the worker that serves; the sample.

    Two of them in a batch. Answers other than 200 raise WorkerFailed.
    """
    from shunter.plugins.torchserve.archives import unpack
    from shunter.plugins.torchserve.worker_client import ModelWorker

    def ask(packed):
        model = unpack(packed, tmp_path / "unpacked")
        sample = model.sample()
        with ModelWorker(model, threads=1) as worker:
            worker.run([sample, sample])
        return sample

    return ask


@pytest.fixture(scope="session")
def loaded():
    """A context manager: the model of an archive. It leaves the modules and torch as they were."""

    @contextmanager
    def loaded(packed, batch=32):
        from ts.model_loader import ModelLoaderFactory

        threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            with zipfile.ZipFile(packed) as content:
                content.extractall(folder)
            patch.syspath_prepend(folder)
            patch.chdir(folder)
            for name in MODULES:
                patch.delitem(sys.modules, name, raising=False)
            service = ModelLoaderFactory.get_model_loader().load(
                packed.stem, folder, "handler.py", None, batch, None, True, Metrics()
            )
            yield Loaded(service)
            for name in MODULES:
                sys.modules.pop(name, None)
        torch.set_num_threads(threads)

    return loaded
