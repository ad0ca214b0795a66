"""Networks of the model store behind both sides of the Triton benchmarks, in any setting.

A setting of Triton's own is a model of its repository; only those that are wanted are loaded.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import load
import numpy as np
from rpc import real
from rpc.models import RpcModel
from rpc.real import pack_real
from triton_sides import Ours, PythonBackend, Static

from shunter.plugins import hosts

KSERVE = {"float32": "FP32", "int64": "INT64", "uint8": "UINT8"}
HEAD = 400
"""Bytes of the JSON before the tensors: the same for all, as a stream has one set of headers."""
_POLICY = """\
dynamic_batching {{
  max_queue_delay_microseconds: {delay_us}
{priorities}  default_queue_policy {{
    timeout_action: REJECT
    default_timeout_microseconds: {timeout_us}
    allow_timeout_override: true
    max_queue_size: {queue}
  }}
}}
"""
_PRIORITIES = "  priority_levels: 2\n  default_priority_level: 2\n"


@dataclass(frozen=True)
class Setting(Static):
    """What a user of the Python backend chooses for a real model."""

    threads: int = 1
    """Of torch, in each instance."""
    timeout_us: int = 0
    """After which a request that waits is refused; 0: never."""
    queue: int = 0
    """Requests that may wait; 0: any number."""
    priorities: bool = False

    @property
    def label(self) -> str:
        """Short, for names and rows."""
        text = f"{self.instances}x{self.threads}x{self.batch}-{self.delay_us}"
        text += f"-t{self.timeout_us}" if self.timeout_us else ""
        text += f"-q{self.queue}" if self.queue else ""
        return text + ("-p" if self.priorities else "")

    def batching(self) -> str:
        """Its part of config.pbtxt."""
        if not (self.timeout_us or self.queue or self.priorities):
            return f"dynamic_batching {{ max_queue_delay_microseconds: {self.delay_us} }}\n"
        return _POLICY.format(
            delay_us=self.delay_us,
            priorities=_PRIORITIES if self.priorities else "",
            timeout_us=self.timeout_us,
            queue=self.queue,
        )


class RealBackend(PythonBackend):
    """Triton's Python backend with one real model, in every setting of a grid."""

    def __init__(self, model: RpcModel, weights: Path, settings: Sequence[Setting]) -> None:
        super().__init__([model], list(dict.fromkeys(settings)))
        self._weights = weights

    @staticmethod
    def named(model: RpcModel, setting: Static) -> RpcModel:
        """The model in that setting."""
        assert isinstance(setting, Setting)
        return replace(model, name=f"{model.name}-{setting.label}")

    def _write_repository(self) -> None:
        (self.folder / "models").mkdir()
        (model,) = self._given
        for setting in self._grid:
            named = self.named(model, setting)
            one = real.TritonReal(self._weights, ())
            one.folder, one._models = self.folder, {named: (setting.batch, setting.instances)}
            one._write_repository()
            path = self.folder / "models" / named.name / "config.pbtxt"
            threads = f'{{ key: "threads" value: {{ string_value: "{setting.threads}" }} }},'
            text = path.read_text(encoding="ascii")
            text = text.replace("dynamic_batching { }\n", setting.batching())
            text = text.replace("parameters [", f"parameters [\n  {threads}")
            path.write_text(text, encoding="ascii")
        self._models = {}

    @contextmanager
    def loaded(self, model: RpcModel, setting: Setting) -> Iterator[RpcModel]:
        """Served for a while. Loaded anew each time: with policies Triton's batcher slows down."""
        named = self.load(model, setting)
        try:
            yield named
        finally:
            self.unload(model, setting)


class RealOurs(Ours):
    """Our backend with one real model in any configuration."""

    def __init__(
        self,
        folder: Path,
        model: RpcModel,
        weights: Path,
        *,
        batch: int,
        delay_ms: int = 1,
        section: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(folder, [], batch, 1)
        handler = {"threads": 0}
        pack_real(
            model,
            folder,
            weights,
            name=model.name,
            batch=batch,
            delay_ms=delay_ms,
            handler=handler,
            section=section,
        )
        self._files = [f"{model.name}.mar"]

    def state(self) -> Any:
        """What the backend says of the model."""
        [found] = hosts.status_of(self.process.host.backend_at)["models"]
        return found


@contextmanager
def weights() -> Iterator[Path]:
    """A folder with the networks' code and weights."""
    with tempfile.TemporaryDirectory() as folder:
        real.write_weights(Path(folder))
        yield Path(folder)


# ---- requests


def body(name: str, x: np.ndarray, parameters: Mapping[str, Any]) -> bytes:
    """A request of one row, tensors as bytes, its JSON padded to ``HEAD`` bytes."""
    entry = {
        "name": name,
        "shape": [1, *x.shape],
        "datatype": KSERVE[str(x.dtype)],
        "parameters": {"binary_data_size": x.nbytes},
    }
    given = {"binary_data_output": True, **parameters}
    head = json.dumps({"inputs": [entry], "parameters": given}).encode()
    if len(head) > HEAD:
        raise ValueError(f"{len(head)} bytes of JSON do not fit into {HEAD}")
    return head.ljust(HEAD) + x.tobytes()


def input_name(side: Any, model: RpcModel) -> str:
    """As the side calls it: ours has the name of the handler."""
    return "ids" if isinstance(side, RealOurs) and -1 in model.input[1] else "x"


def stream(
    side: Any,
    model: RpcModel,
    given: Sequence[np.ndarray],
    *,
    name: str = "load",
    parameters: Mapping[str, Any] | None = None,
    **more: Any,
) -> load.Stream:
    """Requests of these tensors to a side; ``more``: arrivals, SLO, seed of the stream."""
    kind = input_name(side, model)
    return load.Stream(
        name,
        f"{side.base}/v2/models/{model.name}/infer",
        bodies=[body(kind, x, parameters or {}) for x in given],
        content_type="application/octet-stream",
        headers={"Inference-Header-Content-Length": str(HEAD)},
        **more,
    )


def check(side: Any, model: RpcModel, x: np.ndarray, wanted: np.ndarray) -> None:
    """Ask once. RuntimeError when it does not answer, or something else."""
    answer = httpx.post(
        f"{side.base}/v2/models/{model.name}/infer",
        content=body(input_name(side, model), x, {}),
        headers={"Inference-Header-Content-Length": str(HEAD)},
        timeout=60,
        trust_env=False,
    )
    if not answer.is_success:
        raise RuntimeError(f"{model.name}: {answer.status_code} {answer.text[:300]}")
    head = int(answer.headers["inference-header-content-length"])
    found = np.frombuffer(answer.content[head:], wanted.dtype)
    if found.shape != wanted.shape or not np.allclose(found, wanted, atol=2e-3):
        raise RuntimeError(f"{model.name} answers otherwise than the network does here")


def answer_of(network: real.Network, x: np.ndarray) -> np.ndarray:
    """What the network says of it here."""
    return network.of_requests([real.torch.from_numpy(x)])[0].numpy()


def closed(
    side: Any, model: RpcModel, given: Sequence[np.ndarray], clients: int, seconds: float
) -> float:
    """Requests per second with so many clients; all must be answered."""
    one = stream(side, model, given, closed=load.Closed(clients, seconds))
    found = load.run(load.Spec([one], timeout_s=120))
    if found["load"]["ok"] != found["load"]["sent"]:
        raise RuntimeError(f"{model.name}: {found['load']['statuses']}")
    # Until the last answer: the window would cut large batches into parts.
    samples = found.of("load")
    return len(samples) / float((samples.due_s + samples.latency_s).max())


def setting_row(setting: Setting) -> dict[str, Any]:
    """As it stands in a result."""
    return asdict(setting) | {"label": setting.label}


__all__ = [
    "RealBackend",
    "RealOurs",
    "Setting",
    "answer_of",
    "check",
    "closed",
    "setting_row",
    "stream",
    "weights",
]
