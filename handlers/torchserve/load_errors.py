"""Why a model did not load: in a line for whoever asked for it, whole in the log before that."""

from __future__ import annotations

import logging
import sys

from shunter.handlers.torchserve.output import LINES


class LoadFailed(Exception):
    """The model did not load; why is in the log, and was answered."""


class Refused(Exception):
    """The model did not load; what to answer."""

    def __init__(self, code: int, text: str) -> None:
        """``text``: with the cause, as far as it is known."""
        super().__init__(f"{code} - {text}")
        self.code, self.text = code, text


class LastError(logging.Handler):
    """Remembers the last exception that was logged: TorchServe's loader tells only its kind."""

    error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        if record.exc_info and record.exc_info[1] is not None:
            self.error = record.exc_info[1]

    def __enter__(self) -> LastError:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


def explain(error: BaseException) -> str:
    """An exception and its last cause in a line, each with its kind and text once."""
    error = _unmasked(error)
    text, cause = _line(error), error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return text if cause is error else f"{text}, caused by {_line(cause)}"


def _unmasked(error: BaseException) -> BaseException:
    """What an import in a handler raised.

    TorchServe's loader takes every ImportError for a handler that is not in the archive, and then
    looks for one of its own of that name, which is not there either.
    """
    name, before = getattr(error, "name", None), error.__context__
    is_mask = isinstance(error, ImportError) and (name or "").startswith("ts.torch_handler.")
    return before if is_mask and isinstance(before, ImportError) else error


def _line(error: BaseException) -> str:
    kind = type(error).__name__
    text = next((line for line in str(error).splitlines() if line.strip()), "").strip()
    if not text or text == kind or text.startswith(f"{kind}:"):
        return text or kind
    return f"{kind}: {text}"


def flush_output() -> None:
    """Whoever hears that the load failed may end this process at once: nothing may be lost."""
    LINES.flush()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
