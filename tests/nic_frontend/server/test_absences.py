"""Why a model has no worker now: what is remembered, and what clients are told."""

import numpy as np
import pytest

from shunter.nic_frontend.client import BadRequestError, Client, UnavailableError
from shunter.nic_frontend.server.absences import GONE, MOST, REMEMBER_S, Absences


def test_what_was_said_last_is_known_until_there_is_a_worker():
    known = Absences()
    known.note("m", "1", "first", 0.0)
    known.note("m", "1", "second", 1.0, needs_mb=7)
    assert known.why("m", "1", 1.0) == known.why("m", "", 1.0) == "second"
    assert known.why("m", "2", 1.0) is known.why("n", "", 1.0) is None
    assert known.needs_mb("m", "1", 1.0) == 7
    known.clear("m", "1")
    assert known.why("m", "1", 1.0) is None and known.needs_mb("m", "1", 1.0) == 0


def test_nobody_is_remembered_for_ever():
    known = Absences()
    for number in range(MOST + 1):
        known.note(f"m{number}", "1", "gone", 0.0, needs_mb=1)
    assert known.why("m0", "", 0.0) is None
    assert known.why("m1", "", REMEMBER_S) == "gone"
    assert known.why("m1", "", REMEMBER_S + 1) is None
    assert known.needs_mb("m1", "1", REMEMBER_S + 1) == 0


@pytest.mark.parametrize("scheme", ["udp", "tcp"])
def test_a_client_hears_whether_there_is_such_a_model_and_why_it_has_no_worker(
    make_service, double, scheme
):
    service = make_service(queue_bytes=1 << 20)
    worker = service.serve("double", **double)
    with Client(service.url(scheme), timeout_s=30) as client:
        x = np.ones((1, 3), np.float32)
        with pytest.raises(BadRequestError, match="no such model"):
            client.infer("nobody", [x])
        worker.close()
        service.until(lambda: not service.front_end.functions.find("double", ""), "it is gone")
        with pytest.raises(UnavailableError, match=f"model double has no network worker .*{GONE}"):
            client.infer("double", [x])
        large = [("uint8", (1 << 20,))]
        service.start_worker("large", large, large, double["infer"], batch=4)
        missing = service.front_end.functions.why_none
        service.until(lambda: missing("large", ""), "it is refused")
        with pytest.raises(UnavailableError, match=r"refused: .*need 8 MB; queue_mb allows 1"):
            client.infer("large", [np.zeros((1, 1 << 20), np.uint8)])
