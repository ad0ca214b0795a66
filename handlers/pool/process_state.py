"""What the code of a model may set for its whole process, and would find changed by another's."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch


def _variables() -> dict[bytes, bytes]:
    """As this Python keeps them: to decode all of them for each batch would take longer than all
    the rest."""
    return os.environb._data  # type: ignore[attr-defined]


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _logs() -> tuple[int, tuple[logging.Handler, ...], int]:
    root = logging.root
    return root.level, tuple(root.handlers), root.manager.disable


def _cudnn() -> tuple[bool, bool, bool]:
    flags = torch.backends.cudnn
    return flags.benchmark, flags.deterministic, flags.allow_tf32


@dataclass(frozen=True)
class ProcessState:
    """Seeds, defaults of torch, paths and variables."""

    python_seed: Any
    numpy_seed: Any
    torch_seed: torch.Tensor
    dtype: torch.dtype
    threads: int
    grad: bool
    deterministic: bool
    precision: str
    """Of products of matrices."""
    cuda_seed: torch.Tensor | None
    """Of the GPU, if there is one."""
    cudnn: tuple[bool, bool, bool]
    """Whether it tries out, repeats itself exactly, and rounds to TF32."""
    recursion: int
    folder: str
    """Empty: it is gone, as that of a model whose server has forgotten it."""
    path: tuple[str, ...]
    environ: dict[bytes, bytes]
    logs: tuple[int, tuple[logging.Handler, ...], int]
    """Of the root logger: its level, its handlers, and up to which level nothing is logged."""

    @classmethod
    def now(cls) -> ProcessState:
        """That of this process, and of this thread where it is a thread's."""
        numpy = sys.modules.get("numpy")
        return cls(
            python_seed=random.getstate(),
            numpy_seed=numpy.random.get_state() if numpy else None,
            torch_seed=torch.get_rng_state(),
            dtype=torch.get_default_dtype(),
            threads=torch.get_num_threads(),
            grad=torch.is_grad_enabled(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            precision=torch.get_float32_matmul_precision(),
            cuda_seed=torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
            cudnn=_cudnn(),
            recursion=sys.getrecursionlimit(),
            folder=_folder(),
            path=tuple(sys.path),
            environ=dict(_variables()),
            logs=_logs(),
        )

    def restore(self) -> None:
        """Let it be so again. What costs time or says something is set only where it differs."""
        random.setstate(self.python_seed)
        if self.numpy_seed is not None:
            sys.modules["numpy"].random.set_state(self.numpy_seed)
        torch.set_rng_state(self.torch_seed)
        torch.set_grad_enabled(self.grad)
        if torch.get_default_dtype() is not self.dtype:
            torch.set_default_dtype(self.dtype)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        if torch.are_deterministic_algorithms_enabled() != self.deterministic:
            torch.use_deterministic_algorithms(self.deterministic)
        if torch.get_float32_matmul_precision() != self.precision:
            torch.set_float32_matmul_precision(self.precision)
        if self.cuda_seed is not None:
            torch.cuda.set_rng_state(self.cuda_seed)
        if _cudnn() != self.cudnn:
            flags = torch.backends.cudnn
            flags.benchmark, flags.deterministic, flags.allow_tf32 = self.cudnn
        if sys.getrecursionlimit() != self.recursion:
            sys.setrecursionlimit(self.recursion)
        if self.folder and _folder() != self.folder:
            with contextlib.suppress(FileNotFoundError):
                os.chdir(self.folder)
        if _logs() != self.logs:
            logging.root.level, logging.root.handlers[:], logging.root.manager.disable = self.logs
            logging.root.manager._clear_cache()  # type: ignore[attr-defined]
        sys.path[:] = self.path
        if _variables() != self.environ:
            for name in _variables().keys() - self.environ.keys():
                del os.environb[name]
            for name, value in self.environ.items():
                if os.environb.get(name) != value:
                    os.environb[name] = value
