"""The rules in C, called as those in Python are."""

import ctypes
import os
import subprocess
from ctypes import POINTER, Structure, byref, c_bool, c_double, c_int32, c_int64, c_uint32, c_uint64
from pathlib import Path

import pytest

from shunter.nic_frontend import build


class Line(Structure):
    _fields_ = [("fixed_ns", c_int64), ("per_request_ns", c_int64)]


class Cut(Structure):
    _fields_ = [("skip", c_uint32), ("take", c_uint32)]


class Adaptive(Structure):
    _fields_ = [
        *((name, c_double) for name in ("alpha", "cap", "value", "returning")),
        *((name, c_bool) for name in ("open", "held")),
        *((name, c_int64) for name in ("start_ns", "end_ns")),
        *((name, c_int64) for name in ("answers", "answered", "waiting", "before")),
    ]


class Fit(Structure):
    _fields_ = [
        *((name, c_double) for name in ("fixed_ns", "per_request_ns", "error_ns")),
        ("batches", c_uint64),
        *((name, c_double) for name in ("weight", "size", "latency")),
        *((name, c_double) for name in ("size_size", "size_latency")),
        ("beyond", c_int32),
    ]


_I64, _U64, _U32, _REAL, _FLAG = c_int64, c_uint64, c_uint32, c_double, c_bool
_CAPS, _TIMES = POINTER(c_uint32), POINTER(c_int64)
# Name after the prefix -> what it returns, and what it takes.
_FORMING = {
    "step": (_REAL, [_REAL] * 4),
    "hold_ns": (_I64, [_REAL, _I64]),
    "should_release": (_FLAG, [_U64, _U64, _FLAG, _I64, _REAL, *[_U64] * 4]),
    "wake_after_us": (_U64, [_U64, _FLAG, _I64, *[_U64] * 3]),
    "may_send_ahead": (_FLAG, [_U32, _REAL, *[_U32] * 4, *[_FLAG] * 3]),
    "split": (None, [_U32, _CAPS, _U32, _CAPS]),
    "split_by_latency": (None, [_U32, _CAPS, POINTER(Line), _U32, _CAPS]),
    "staggered_size": (_U32, [_U32, Line, _TIMES, _U32]),
    "fit_deadlines": (Cut, [_TIMES, _CAPS, *[_U32] * 4, Line, _I64]),
    "is_too_late": (_FLAG, [_I64] * 3),
    "too_late_at_ns": (_I64, [_I64] * 3),
    "predicted_wait_ns": (_I64, [_U64, _U64, _I64, _I64]),
}
_ADAPTIVE, _FIT = POINTER(Adaptive), POINTER(Fit)
_OTHERS = {
    "adaptive_threshold_init": (None, [_ADAPTIVE, _REAL, _REAL]),
    "adaptive_threshold_answered": (None, [_ADAPTIVE, _I64, _U32, _I64, _I64, _I64]),
    "adaptive_threshold_settle": (None, [_ADAPTIVE, _I64, _I64]),
    "adaptive_threshold_worth": (_REAL, [_ADAPTIVE, _I64, _U32, _I64]),
    "adaptive_threshold_held": (_I64, [_ADAPTIVE]),
    "latency_fit_init": (None, [_FIT, _REAL, _REAL]),
    "latency_fit_observe": (None, [_FIT, _U32, _I64]),
    "latency_fit_known": (_FLAG, [_FIT]),
    "latency_fit_line": (Line, [_FIT]),
    "latency_fit_worth_ns": (_I64, [_FIT]),
    "latency_fit_caution_ns": (_I64, [_FIT]),
}


class CRules:
    """Functions and classes with the names and the arguments of those in Python."""

    def __init__(self, path):
        self._library = ctypes.CDLL(str(path))
        for prefix, table in (("forming_", _FORMING), ("", _OTHERS)):
            for name, (returned, arguments) in table.items():
                function = self._library[f"shunter_{prefix}{name}"]
                function.restype, function.argtypes = returned, arguments
                setattr(self, f"_{name}", function)
        for name in ("step", "hold_ns", "may_send_ahead", "predicted_wait_ns"):
            setattr(self, name, getattr(self, f"_{name}"))
        self.is_too_late, self.too_late_at_ns = self._is_too_late, self._too_late_at_ns

    def should_release(self, queued, oldest, slack, *others):
        return self._should_release(queued, oldest, slack is not None, slack or 0, *others)

    def wake_after_us(self, oldest, slack, *others):
        return self._wake_after_us(oldest, slack is not None, slack or 0, *others)

    def split(self, queued, caps):
        sizes = _array(c_uint32, [77] * len(caps))
        self._split(queued, _array(c_uint32, caps), len(caps), sizes)
        return sizes[: len(caps)]

    def split_by_latency(self, queued, caps, fixed, per_request):
        sizes, lines = _array(c_uint32, [77] * len(caps)), map(Line, fixed, per_request)
        lines = _array(Line, list(lines))
        self._split_by_latency(queued, _array(c_uint32, caps), lines, len(caps), sizes)
        return sizes[: len(caps)]

    def staggered_size(self, cap, fixed, per_request, busy):
        line = Line(fixed, per_request)
        return self._staggered_size(cap, line, _array(c_int64, busy), len(busy))

    def fit_deadlines(self, slacks, waiting, size, cap, fixed, per_request, next_free, rows=()):
        many, line = _array(c_int64, slacks), Line(fixed, per_request)
        each = _array(c_uint32, rows) if rows else None
        numbers = len(slacks), waiting, size, cap, line, next_free
        cut = self._fit_deadlines(many, each, *numbers)
        return cut.skip, cut.take

    def adaptive(self, alpha=0.5, cap=128.0):
        return _Object(self, "adaptive_threshold", Adaptive, alpha, cap)

    def fit(self, fixed=0.0, per_request=0.0):
        return _Object(self, "latency_fit", Fit, fixed, per_request)


class _Object:
    """A structure, its fields, and the functions that take it first."""

    def __init__(self, rules, prefix, structure, *arguments):
        self._rules, self._prefix, self._state = rules, prefix, structure()
        self.init(*arguments)

    def __getattr__(self, name):
        function = getattr(self._rules, f"_{self._prefix}_{name}", None)
        if function is None:
            return getattr(self._state, name)
        return lambda *arguments: function(byref(self._state), *arguments)


def _array(kind, values):
    return (kind * max(1, len(values)))(*values)


@pytest.fixture(scope="session", params=["library", "with fused operations"])
def c_rules(request, tmp_path_factory):
    """The rules in the library, and as they are where a processor can multiply and add at once."""
    if request.param == "library":
        return CRules(build.ensure())
    if " fma " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs a processor with FMA")
    path = tmp_path_factory.mktemp("forming") / "rules.so"
    sources = map(str, (build.SOURCES[0] / "forming").glob("*.c"))
    # As a compiler that fuses by default; what build.FLAGS say of it counts.
    flags = ["-ffp-contract=fast", "-mfma", *build.FLAGS, *build.WARNINGS]
    command = [*build.compiler(), *flags, *sources, "-o", str(path)]
    subprocess.run(command, check=True, env=os.environ)
    return CRules(path)
