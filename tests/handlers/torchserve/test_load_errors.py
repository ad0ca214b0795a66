"""One line for who asked for a model, whatever its handler raised."""

import pytest

from shunter.handlers.torchserve.load_errors import explain


def raised(run):
    with pytest.raises(BaseException) as caught:
        run()
    return caught.value


def chain(*errors):
    """Each of them raised because of the one before."""
    before = None
    for error in errors:
        error.__cause__, before = before, error
    return before


def masked():
    """As TorchServe's loader does."""
    try:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    except ImportError:
        name = "ts.torch_handler.mnist_handler"
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)  # noqa: B904


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("too small"), "ValueError: too small"),
        (ValueError("ValueError: too small"), "ValueError: too small"),
        (ValueError("ValueErrors are rare"), "ValueError: ValueErrors are rare"),
        (AssertionError(), "AssertionError"),
        (AssertionError("AssertionError"), "AssertionError"),
        (RuntimeError("\n\n  first\nsecond"), "RuntimeError: first"),
        (KeyError("a"), "KeyError: 'a'"),
        (
            chain(OSError("no file"), ValueError("no weights"), RuntimeError("no model")),
            "RuntimeError: no model, caused by OSError: no file",
        ),
        (raised(masked), "ModuleNotFoundError: No module named 'matplotlib'"),
        (
            ModuleNotFoundError("No module named 'ts.torch_handler.x'", name="ts.torch_handler.x"),
            "ModuleNotFoundError: No module named 'ts.torch_handler.x'",
        ),
        (ImportError("no name"), "ImportError: no name"),
    ],
)
def test_an_error_and_its_last_cause_are_told_in_a_line(error, line):
    assert explain(error) == line
