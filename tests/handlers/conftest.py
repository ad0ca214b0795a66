"""Shared by the tests of the handlers room."""

import struct
import warnings

import pytest

METRICS = """
model_metrics:
  gauge:
    - {name: HandlerTime, unit: ms, dimensions: [ModelName, Level]}
    - {name: PredictionTime, unit: ms, dimensions: [ModelName, Level]}
"""

END = b"\xff\xff\xff\xff"


def _field(data):
    data = data.encode() if isinstance(data, str) else data
    return struct.pack("!i", len(data)) + data


class Wire:
    """Messages as the front end writes them."""

    END = END
    field = staticmethod(_field)

    @staticmethod
    def request(request_id, headers, parameters):
        parts = [_field(request_id)]
        parts += [_field(name) + _field(value) for name, value in headers]
        parts.append(END)
        for name, content_type, value in parameters:
            parts.append(_field(name) + _field(content_type) + _field(value))
        parts.append(END)
        return b"".join(parts)

    @staticmethod
    def infer(*requests):
        return b"I" + b"".join(Wire.request(*request) for request in requests) + END

    @staticmethod
    def load(name, path, handler, batch_size=4, gpu=-1, envelope=""):
        return b"".join(
            (
                b"L",
                _field(name),
                _field(str(path)),
                struct.pack("!i", batch_size),
                _field(handler),
                struct.pack("!i", gpu),
                _field(envelope),
                b"\x01",
            )
        )


class DrippingSocket:
    """Delivers ``data`` in pieces of the given sizes, over and over, then ends."""

    def __init__(self, data, sizes=(1 << 30,)):
        self.data = memoryview(data)
        self.sizes = sizes
        self.reads = 0

    def _piece(self, wanted):
        size = min(wanted, self.sizes[self.reads % len(self.sizes)])
        self.reads += 1
        piece, self.data = self.data[:size], self.data[size:]
        return piece

    def recv(self, wanted):
        return bytes(self._piece(wanted))

    def recv_into(self, target, count=0, flags=0):
        piece = self._piece(len(target))
        target[: len(piece)] = piece
        return len(piece)


@pytest.fixture(scope="session")
def wire():
    return Wire


@pytest.fixture(scope="session")
def dripping():
    return DrippingSocket


@pytest.fixture
def metrics_file(tmp_path):
    path = tmp_path / "metrics.yaml"
    path.write_text(METRICS)
    return path


@pytest.fixture
def stock_metrics(metrics_file):
    """TorchServe's metrics cache, as a worker makes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its file open
        from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

        cache = MetricsCacheYamlImpl(str(metrics_file))
    cache.initialize_cache()
    cache.model_name = "noop"
    return cache
