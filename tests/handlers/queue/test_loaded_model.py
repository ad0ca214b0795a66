"""What a worker takes from its environment for the front end."""

import pytest

from shunter.batching.queue.attach import MOST_SETS
from shunter.handlers.queue.loaded_model import worker_set_of


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        *[(None, 0), ("0", 1), ("7", 8), (str(MOST_SETS - 1), MOST_SETS)],
        *[(str(MOST_SETS), 0), ("-1", 0), ("-2", 0), ("shared", 0), ("", 0)],
    ],
)
def test_workers_of_one_pool_process_are_a_set(number, expected):
    assert worker_set_of({} if number is None else {"SHUNTER_POOL": number}) == expected
