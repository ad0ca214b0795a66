"""Copies on the UDP path: what other sides do in between does not count."""


def test_only_what_is_between_the_looks_counts(script):
    found = script("rpc.copies").Copies(reply=100)
    names = ("requests", "bytes_in", "datagrams_in", "copied_bytes", "gathered_bytes")
    counted = dict.fromkeys((*names, "client"), 0)

    def count(*more):
        for name, by in zip(counted, more, strict=True):
            counted[name] += by

    for requests in (3, 7):
        with found.turn(counted.copy, lambda: counted["client"]):
            count(requests, requests * (2 * 64 + 400), 2 * requests, 50, 400 * requests, 25)
        count(*6 * [1000])  # another side's turn
    assert (found.came, found.copied) == (10 * (400 + 100), 10 * 400 + 2 * (50 + 25))
    assert found.row() == {
        "requests": 10,
        "copies_per_byte": 0.83,
        "bytes_copied_per_request": 415,
        "of_them_by_workers": 400,
        "of_them_by_the_client": 5,
        "payload_bytes_per_request": 500,
    }


def test_without_requests_there_is_nothing_to_divide(script):
    row = script("rpc.copies").Copies(reply=1).row()
    assert row["bytes_copied_per_request"] == row["copies_per_byte"] == 0
