"""What /proc and the cgroup say of memory."""

import math
import os

import pytest

from shunter.allocator.memory.host import available_bytes
from shunter.batching.queue.shared_memory import PAGE, sealed_memory

MIB = 1 << 20
MEMINFO = "MemTotal:  4194304 kB\nMemFree:   1024 kB\nMemAvailable:   2097152 kB\n"


@pytest.fixture
def roots(tmp_path):
    """Writes files below a /sys and a /proc of its own."""

    def write(meminfo=None, **cgroup):
        sys_root, proc_root = tmp_path / "sys", tmp_path / "proc"
        proc_root.mkdir()
        folder = sys_root / "fs/cgroup"
        folder.mkdir(parents=True)
        if meminfo is not None:
            (proc_root / "meminfo").write_text(meminfo)
        for name, text in cgroup.items():
            (folder / f"memory.{name}").write_text(text)
        return sys_root, proc_root

    return write


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        ({}, 2048 * MIB),
        ({"max": "max\n", "current": "5\n"}, 2048 * MIB),
        ({"max": f"{512 * MIB}\n", "current": f"{200 * MIB}\n"}, 312 * MIB),
        (
            {
                "max": f"{512 * MIB}",
                "current": f"{200 * MIB}",
                "stat": f"anon 7\ninactive_file {100 * MIB}\nactive_file 3\n",
            },
            412 * MIB,
        ),
        ({"max": f"{100 * MIB}", "current": f"{120 * MIB}"}, 0),
        ({"max": f"{8192 * MIB}", "current": "0"}, 2048 * MIB),
    ],
)
def test_the_tighter_of_host_and_cgroup_counts(roots, cgroup, expected):
    assert available_bytes(*roots(MEMINFO, **cgroup)) == expected


def test_the_groups_above_count_too(roots, tmp_path):
    sys_root, proc_root = roots(MEMINFO, max="max", current="1")
    (proc_root / "self").mkdir()
    (proc_root / "self/cgroup").write_text("0::/system.slice/torchserve.service\n")
    inner = sys_root / "fs/cgroup/system.slice/torchserve.service"
    inner.mkdir(parents=True)
    for folder, limit in ((inner, 900), (inner.parent, 300)):
        (folder / "memory.max").write_text(str(limit * MIB))
        (folder / "memory.current").write_text(str(100 * MIB))
    assert available_bytes(sys_root, proc_root) == 200 * MIB


V1 = "5:cpu,cpuacct:/box\n4:memory:/docker/box\n1:name=systemd:/box\n"
UNLIMITED = 9223372036854771712
"""What v1 says where there is no limit."""


@pytest.mark.parametrize(
    ("cgroup", "folder", "limit", "stat", "expected"),
    [
        (V1, "docker/box", 512 * MIB, "", 312 * MIB),
        (V1, "docker", 512 * MIB, "", 312 * MIB),
        # inside of a container its own group is the root
        (V1, "", 512 * MIB, "", 312 * MIB),
        ("", "", 512 * MIB, "", 312 * MIB),
        ("4:hugetlb,memory,misc:/box\n", "box", 512 * MIB, "", 312 * MIB),
        (V1, "", 512 * MIB, f"inactive_file 7\ntotal_inactive_file {100 * MIB}\n", 412 * MIB),
        (V1, "", 100 * MIB, "", 0),
        (V1, "docker/box", UNLIMITED, "", 2048 * MIB),
        (V1, "docker/box", 8192 * MIB, "", 2048 * MIB),
        # another controller's group
        (V1, "box", 512 * MIB, "", 2048 * MIB),
    ],
)
def test_the_first_version_of_cgroups_counts_too(roots, cgroup, folder, limit, stat, expected):
    sys_root, proc_root = roots(MEMINFO)
    (proc_root / "self").mkdir()
    (proc_root / "self/cgroup").write_text(cgroup)
    group = sys_root / "fs/cgroup/memory" / folder
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (group / "memory.usage_in_bytes").write_text(f"{200 * MIB}\n")
    (group / "memory.stat").write_text(stat)
    assert available_bytes(sys_root, proc_root) == expected


def test_without_any_limit_and_without_the_hosts_word_there_is_no_bound(roots):
    sys_root, proc_root = roots()
    group = sys_root / "fs/cgroup/memory"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(f"{UNLIMITED}\n")
    (group / "memory.usage_in_bytes").write_text("5\n")
    assert available_bytes(sys_root, proc_root) == math.inf


def test_a_host_that_says_nothing_has_no_bound(roots):
    assert available_bytes(*roots()) == math.inf


def test_this_host_has_some():
    assert available_bytes() > 1 * MIB


def test_queues_may_take_what_the_cache_of_files_gives_back(roots, monkeypatch):
    group = {"max": f"{MIB}", "current": f"{MIB}", "stat": f"inactive_file {16 * PAGE}\n"}
    monkeypatch.setattr(available_bytes, "__defaults__", roots(MEMINFO, **group))
    os.close(sealed_memory("shunter-test", 16 * PAGE, available_bytes()))
    with pytest.raises(OSError, match="no memory"):
        sealed_memory("shunter-test", 17 * PAGE, available_bytes())
