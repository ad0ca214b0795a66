"""Copies on the UDP path: what other sides do in between does not count."""


def test_only_what_is_between_the_looks_counts(script):
    found = script("rpc.copies").Copies(reply=100)
    names = ("requests", "bytes_in", "datagrams_in", "copied_segments", "copied_bytes")
    counted = dict.fromkeys((*names, "client"), 0)

    def count(*more):
        for name, by in zip(counted, more, strict=True):
            counted[name] += by

    for requests in (3, 7):
        with found.turn(counted.copy, lambda: counted["client"]):
            count(requests, requests * (2 * 64 + 400), 2 * requests, 1, 200, 50)
        count(*6 * [1000])  # another side's turn
    assert (found.came, found.copied) == (10 * (400 + 100), 2 * (200 + 50))
    assert found.row() == {
        "requests": 10,
        "segments_copied_per_request": 0.2,
        "bytes_copied_per_request": 50,
        "of_them_by_the_client": 10,
        "payload_bytes_per_request": 500,
    }


def test_without_requests_there_is_nothing_to_divide(script):
    assert script("rpc.copies").Copies(reply=1).row()["bytes_copied_per_request"] == 0
