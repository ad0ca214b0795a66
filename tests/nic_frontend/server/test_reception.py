from shunter.nic_frontend.server.reception import MOST_BETWEEN, HelloTimes


def test_the_time_between_both_hellos_counts():
    times = HelloTimes()
    times.cookie_sent(b"a", 100)
    times.cookie_sent(b"b", 200)
    times.came_back(b"b", 230)
    times.came_back(b"a", 400)
    assert (times.sum_ns, times.count) == (330, 2)


def test_a_cookie_that_was_asked_for_twice_tells_nothing():
    times = HelloTimes()
    for now in (100, 200, 300):
        times.cookie_sent(b"a", now)
    times.came_back(b"a", 301)
    assert (times.sum_ns, times.count) == (0, 0)


def test_a_second_hello_counts_once():
    times = HelloTimes()
    times.cookie_sent(b"a", 100)
    for now in (110, 120):
        times.came_back(b"a", now)
    assert (times.sum_ns, times.count) == (10, 1)


def test_who_never_comes_back_costs_bounded_memory():
    times = HelloTimes()
    for i in range(10 * MOST_BETWEEN):
        times.cookie_sent(i.to_bytes(4, "little"), i)
    assert len(times._sent) == MOST_BETWEEN
    times.came_back((0).to_bytes(4, "little"), 10**9)
    assert times.count == 0
