"""The models that a handler holds, and the calls of their modules that can be replaced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from types import MethodType, ModuleType
from typing import Any

import torch
from torch import nn


def models_of(handler: Any) -> list[nn.Module]:
    """The models that a handler holds: attributes, in lists and dicts of them, or one level below.

    ``handler`` is an object, or the module of a handler that is a function.
    """
    found: dict[int, nn.Module] = {}
    for value in list(vars(handler).values()) if hasattr(handler, "__dict__") else []:
        for each in _members(value):
            if isinstance(each, nn.Module):
                found[id(each)] = each
            elif not isinstance(each, type | ModuleType):
                inner = getattr(each, "model", None)  # such as a pipeline of transformers
                if isinstance(inner, nn.Module):
                    found[id(inner)] = inner
    models = list(found.values())
    parts = {id(part) for model in models for part in model.modules() if part is not model}
    return [model for model in models if id(model) not in parts]


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]


def can_be_seen(module: nn.Module) -> bool:
    """Whether calls of a module can be seen from outside, without a change to what they do."""
    # The first has no forward that could be replaced, the second copies it to other devices; what
    # compiles its calls would compile what replaces it.
    return not isinstance(module, torch.jit.ScriptModule | nn.DataParallel) and (
        getattr(module, "_compiled_call_impl", None) is None
    )


def is_opaque(module: nn.Module) -> bool:
    """Whether a module is compiled as a whole, so that nothing inside of it can stand still."""
    return not can_be_seen(module) or type(module).__name__ == "OptimizedModule"


def inner_modules(model: nn.Module) -> Iterator[nn.Module]:
    """All modules below ``model`` whose calls can be seen, each once."""
    seen: set[int] = {id(model)}

    def below(module: nn.Module) -> Iterator[nn.Module]:
        if is_opaque(module):
            return
        for child in module.children():
            if id(child) in seen:
                continue
            seen.add(id(child))
            if can_be_seen(child):
                yield child
            yield from below(child)

    yield from below(model)


def _first_tensor(arguments: Iterable[Any]) -> torch.Tensor | None:
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument
        if isinstance(argument, list | tuple) and argument:
            return _first_tensor(argument)
    return None


def batch_of(arguments: Iterable[Any]) -> int:
    """Size of the batch: of the first tensor's first dimension; 1 where there is none."""
    found = _first_tensor(arguments)
    return 1 if found is None or not found.dim() else int(found.shape[0])


def size_of(arguments: Iterable[Any]) -> int:
    """Numbers in the first tensor, which grow with the batch and with sequences; at least 1."""
    found = _first_tensor(arguments)
    return 1 if found is None else max(1, found.numel())


class Replacement:
    """In place of a module's ``forward``. A copy of the module gets its own back."""

    def __init__(
        self, module: nn.Module, call: Callable[..., Any], inner: Callable[..., Any]
    ) -> None:
        self._module, self._call = module, call
        functools.update_wrapper(self, inner)  # for those who look at its signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self._module))
        return self._call if copied is None else MethodType(type(copied).forward, copied)


def restore(module: nn.Module, before: Callable[..., Any] | None) -> None:
    """Give a module back the ``forward`` that its own ``__dict__`` had before, or none."""
    del module.__dict__["forward"]
    if before is not None:
        module.__dict__["forward"] = before
