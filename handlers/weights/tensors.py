"""The tensors of a handler's modules whose bytes may lie elsewhere, and how they are moved there.

Parameters and buffers keep their identity: whoever holds one sees the other memory. So do the
constants of a script's graphs, which are the weights of a frozen one; but the first runs make other
constants of them, some of which lie in the same memory, so that they are moved once only, before.
What a module has beside these (packed weights of quantized operators, constants in layouts of
oneDNN) stays where it is, and so do tensors that share only a part of their memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import nn

from shunter.handlers.weights.layout import Record, placed

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


@dataclass
class Weight:
    """Memory that one tensor has, or several have in the same way."""

    name: str
    tensor: torch.Tensor
    order: tuple[int, ...]
    """Its dimensions as they lie in memory, the slowest first."""
    others: list[torch.Tensor] = field(default_factory=list)
    is_constant: bool = False
    """Of a graph: it may be moved before the first run, and never again."""

    @property
    def in_memory_order(self) -> torch.Tensor:
        """It as a contiguous tensor."""
        return self.tensor.detach().permute(self.order)

    @property
    def bytes(self) -> memoryview:
        """Its bytes, where they are now; of a device a copy."""
        return memoryview(self.in_memory_order.reshape(-1).view(torch.uint8).cpu().numpy())

    def move(self, data: torch.Tensor, record: Record) -> None:
        """Let it be these bytes, which are the same as its own; ``data``: those of all records."""
        flat = data[record.begin : record.end].view(self.tensor.dtype)
        # Strides of dimensions of size 1 say nothing, but stay what they were.
        self.become(flat.as_strided(self.tensor.size(), self.tensor.stride()))

    def become(self, other: torch.Tensor) -> None:
        """Let it have the memory of a tensor of its type and device."""
        for each in (self.tensor, *self.others):
            each.data = other


def named_tensors(models: Sequence[nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, layer by layer, as often as there are names for them."""
    for number, model in enumerate(models):
        for prefix, module in model.named_modules():
            for kind in (module.named_parameters, module.named_buffers):
                for name, tensor in kind(recurse=False):
                    yield ".".join(filter(None, (str(number), prefix, name))), tensor


def named_constants(models: Sequence[nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that are constants of the graphs of scripts, by their places in these."""
    for number, model in enumerate(models):
        for prefix, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                for method in module._c._method_names():
                    graph = module._c._get_method(method).graph
                    for place, tensor in enumerate(_constants(graph)):
                        own = f"{method}#{place}"
                        yield ".".join(filter(None, (str(number), prefix, own))), tensor


def _constants(graph: Any) -> Iterator[torch.Tensor]:
    """Of a graph or block, and of what is inside of it."""
    for node in graph.nodes():
        is_tensor = node.kind() == "prim::Constant" and node.hasAttribute("value")
        if is_tensor and node.kindOf("value") == "t":
            yield node.t("value")
        for block in node.blocks():
            yield from _constants(block)


CPU = torch.device("cpu")


def weights_of(models: Sequence[nn.Module], device: torch.device = CPU) -> list[Weight]:
    """What can be moved, each once, in the order of the layers; constants of graphs are the last.

    What has several names is a constant if one of them is. Only what is on ``device``.
    """
    found: dict[tuple[object, ...], Weight] = {}
    for tensors, are_constants in ((named_tensors, False), (named_constants, True)):
        for name, tensor in tensors(models):
            order = _order(tensor) if tensor.device == device else None
            if order is None:
                continue
            key = (tensor.data_ptr(), tensor.dtype, tensor.size(), tensor.stride())
            each = found.setdefault(key, Weight(name, tensor, order))
            if each.tensor is not tensor:
                each.others.append(tensor)
            each.is_constant |= are_constants
    weights = list(found.values())
    alone = _alone(weights)
    return [each for each in weights if id(each) in alone]


def bytes_of(models: Sequence[nn.Module]) -> int:
    """Of all parameters, buffers and constants; what several share counts once."""
    sizes = {}
    for _, tensor in chain(named_tensors(models), named_constants(models)):
        if tensor.layout is torch.strided and not tensor.is_meta:
            sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return sum(sizes.values())


def records_of(weights: Sequence[Weight]) -> tuple[Record, ...]:
    """Where they lie in a file; the strides are part of the names, for they are of the content."""
    return placed(
        [
            (
                f"{each.name}|{','.join(map(str, each.order))}"
                if _is_permuted(each)
                else each.name,
                _DTYPES[each.tensor.dtype],
                tuple(each.in_memory_order.shape),
            )
            for each in weights
        ]
    )


def _is_permuted(weight: Weight) -> bool:
    return weight.order != tuple(range(len(weight.order)))


def _order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions of a tensor that fills its memory; None for one that cannot be moved."""
    # Of other classes nobody knows what belongs to them; opaque and quantized memory has no bytes.
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout is not torch.strided:
        return None
    is_odd = tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_inference()
    if is_odd or tensor.grad_fn is not None or not tensor.numel():
        return None
    if tensor.dtype not in _DTYPES:
        return None
    if tensor.is_contiguous():
        return tuple(range(tensor.dim()))
    sizes, strides = tensor.size(), tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda i: (-strides[i] * (sizes[i] > 1), i)))
    return order if tensor.permute(order).is_contiguous() else None


def _alone(weights: Sequence[Weight]) -> set[int]:
    """Those whose memory no other one has a part of."""
    spans = sorted((w.tensor.data_ptr(), w.tensor.nbytes, id(w)) for w in weights)
    together: set[int] = set()
    end, last = 0, 0
    for begin, size, which in spans:
        if begin < end:
            together |= {which, last}
        if begin + size > end:
            end, last = begin + size, which
    return {which for _, _, which in spans} - together
