"""What a front end asks of a worker that attaches."""

import pytest

from shunter.batching.queue.attach import AttachError
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.server.workers import check_together

MOST = 2048 * (15 * 4096 - 16)
"""Bytes of a request in as many segments as there may be, each as long as one may be."""


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [([MOST], True), ([MOST + 1], False), ([MOST // 2] * 2, True), ([MOST // 2 + 1] * 2, False)],
)
def test_what_no_session_could_carry_is_refused(sizes, fits):
    specs = tuple(TensorSpec(f"t{i}", "uint8", (size,)) for i, size in enumerate(sizes))
    if fits:
        check_together(specs)
    else:
        with pytest.raises(AttachError, match="at most 2048"):
            check_together(specs)
