"""What a worker takes from its environment for the front end."""

import pytest

from shunter.batching.queue.attach import MOST_POOLS
from shunter.handlers.queue.loaded_model import pool_of


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        *[(None, 0), ("0", 1), ("7", 8), (str(MOST_POOLS - 1), MOST_POOLS)],
        *[("-1", 0), ("-2", 0), ("shared", 0), ("", 0)],
    ],
)
def test_workers_of_one_pool_process_say_its_number(number, expected):
    assert pool_of({} if number is None else {"SHUNTER_POOL": number}) == expected
