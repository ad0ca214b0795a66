"""Memory of a server's workers, by the slot in their environment."""

from shunter.allocator.memory.processes import Footprint, footprints


def process(proc, pid, slot=None, children=(), private=0, shared=0):
    task = proc / str(pid) / "task" / str(pid)
    task.mkdir(parents=True)
    (task / "children").write_text(" ".join(map(str, children)))
    pairs = ["A=1"] + ([] if slot is None else [f"SHUNTER_SLOT={slot}"])
    (proc / str(pid) / "environ").write_bytes(b"\0".join(pair.encode() for pair in pairs))
    (proc / str(pid) / "smaps_rollup").write_text(
        f"Rss: 99 kB\nShared_Clean:      {shared} kB\nPrivate_Clean:  1 kB\n"
        f"Private_Dirty:  {private} kB\n"
    )


def test_the_largest_worker_of_each_slot_counts_however_deep_it_is(tmp_path):
    process(tmp_path, 1, children=[2, 3])
    process(tmp_path, 2, slot=4, private=9, shared=5)
    process(tmp_path, 3, children=[5, 6])
    process(tmp_path, 5, slot=4, private=19, shared=4)
    process(tmp_path, 6, slot=7)
    process(tmp_path, 8, slot=9, private=50)  # another server's
    assert footprints(1, tmp_path) == {
        4: Footprint(20 * 1024, 5 * 1024),
        7: Footprint(1024, 0),
    }


def test_a_process_that_has_ended_tells_nothing(tmp_path):
    process(tmp_path, 1, children=[2])
    assert footprints(1, tmp_path) == {}
