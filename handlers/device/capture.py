"""A model's pass as captured graphs, one for each leaf module that does something.

The pass is captured once, at the finest cut; segments of any length are made of the parts
afterwards. All parts share one pool of memory and one stream, so activations lie at fixed
addresses and stay there while a pass stands still. Inputs and outputs are static.

A compiled model (TorchScript, ``torch.compile``) has no modules to cut at: it is one part, and
standing still takes as long as its pass.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from shunter.handlers.device.driver import Driver
from shunter.handlers.device.graphs import costs_us
from shunter.handlers.device.ladder import group

WARM_UPS = 3


class Recorder(Protocol):
    """Records what is launched between :meth:`begin` and :meth:`end`."""

    def session(self) -> AbstractContextManager[None]:
        """Surrounds everything that one model needs: its stream is current."""

    def begin(self) -> None:
        """From here on."""

    def end(self) -> int | None:
        """A graph by its handle; None if there was nothing."""

    def costs_us(self, parts: Sequence[int], restore: Callable[[], None]) -> list[float]:
        """Time of each part on the device in a pass through all of them, which is run for that.

        ``restore`` puts the inputs back before a pass.
        """


@dataclass(frozen=True)
class Captured:
    """A pass in parts. Valid as long as it is kept: the parts use its memory."""

    parts: Sequence[int]
    """Graphs, by handle."""
    costs_us: Sequence[float]
    inputs: Sequence[torch.Tensor]
    """Where the inputs of a batch go."""
    outputs: Any
    """What the pass returns: the same tensors every time."""
    keep: Any = field(repr=False, default=None)
    """Whatever else must live as long."""

    def segments(self, target_us: float) -> list[list[int]]:
        """Parts by segment."""
        return [[self.parts[i] for i in part] for part in group(self.costs_us, target_us)]

    @property
    def bound_us(self) -> float:
        """The longest part: standing still takes as long at worst, however segments are cut."""
        return max(self.costs_us, default=0.0)


def is_opaque(model: torch.nn.Module) -> bool:
    """Whether the model has no modules to cut at."""
    return isinstance(model, torch.jit.ScriptModule) or hasattr(model, "_orig_mod")


def capture(
    model: torch.nn.Module, example: Sequence[torch.Tensor], recorder: Recorder
) -> Captured:
    """Capture a pass over inputs of the shapes of ``example``, on the device where they are.

    The model is in eval mode and its pass is a fixed sequence of kernels. Raises RuntimeError
    where it is not, such as a pass that waits for a result.
    """
    inputs = [tensor.clone() for tensor in example]
    return capture_pass(lambda: model(*inputs), [model], inputs, recorder)


def capture_pass(
    run: Callable[[], Any],
    cut_at: Sequence[torch.nn.Module],
    inputs: Sequence[torch.Tensor],
    recorder: Recorder,
) -> Captured:
    """Capture what ``run`` does, whose parts end where modules within ``cut_at`` do.

    ``inputs`` is what it reads, and may write into. As :func:`capture` otherwise.
    """
    example = [tensor.clone() for tensor in inputs]

    def restore() -> None:
        for there, here in zip(inputs, example, strict=True):
            there.copy_(here)

    parts: list[int] = []
    recording = False

    def cut(*_: Any) -> None:
        if recording:
            end()
            recorder.begin()

    def end() -> None:
        handle = recorder.end()
        if handle is not None:
            parts.append(handle)

    with torch.no_grad(), recorder.session():
        # Some modules compute in another way when they are looked at: warm up what is captured.
        with _hooked(cut_at, cut):
            for _ in range(WARM_UPS):
                run()
            restore()  # a pass may work on its inputs in place
            recording = True
            recorder.begin()
            try:
                outputs = run()
            except BaseException:
                with suppress(RuntimeError):  # it has failed already, and not for this reason
                    end()
                raise
            end()
        costs = recorder.costs_us(parts, restore)
    return Captured(parts, costs, inputs, outputs, (run, recorder))


@contextmanager
def _hooked(models: Sequence[torch.nn.Module], cut: Callable[..., None]) -> Iterator[None]:
    hooks = []
    for model in models:
        leaves = [] if is_opaque(model) else [m for m in model.modules() if not any(m.children())]
        hooks += [leaf.register_forward_hook(cut) for leaf in leaves if leaf is not model]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class CudaRecorder:
    """Records graphs of torch on one stream, with one pool of memory.

    Kernels belong to the context of the stream that they are captured on, so a recorder on a
    stream of a green context makes graphs that stay on its multiprocessors.
    """

    def __init__(self, driver: Driver, device: torch.device, stream: Any = None) -> None:
        """``stream``: handle of one to capture on, another one unless given."""
        self._driver, self._device = driver, device
        self._stream = (
            torch.cuda.Stream(device)
            if stream is None
            else torch.cuda.ExternalStream(int(stream), device=device)
        )
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._now: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def session(self) -> Iterator[None]:
        """Nothing else may be captured on the device meanwhile.

        Waits for nothing but its own stream: best effort may stand still on others.
        """
        gc.collect()  # what is freed within a capture spoils it
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()

    def begin(self) -> None:
        """See :class:`Recorder`."""
        self._now = torch.cuda.CUDAGraph(keep_graph=True)
        self._now.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> int | None:
        """See :class:`Recorder`."""
        graph, self._now = self._now, None
        if graph is None:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a module that does nothing, such as Identity
            graph.capture_end()
        self._graphs.append(graph)  # an empty one too: it holds memory of the pool
        handle = int(graph.raw_cuda_graph())
        nodes = self._driver.results("cuGraphGetNodes", handle)[1]
        return handle if nodes else None

    def costs_us(self, parts: Sequence[int], restore: Callable[[], None]) -> list[float]:
        """See :class:`Recorder`."""
        stream = self._stream.cuda_stream
        return costs_us(self._driver, stream, parts, restore, WARM_UPS)
