"""What else a machine did while a benchmark ran, and which results are older than the code."""

import json
import os
import subprocess
import sys

import pytest

MARK = "SHUNTER_BENCH_RUN=1-a"
HZ = os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def surroundings(script):
    return script("surroundings")


@pytest.fixture
def machine(tmp_path):
    """A /proc of numbers: ``run`` writes a process, ``host`` the processors' time."""

    class Machine:
        folder = tmp_path

        def host(self, total, steal):
            fields = [total - steal, 0, 0, 0, 0, 0, 0, steal, 9, 9]
            (tmp_path / "stat").write_text(f"cpu {' '.join(map(str, fields))}\ncpu0 1\n")

        def run(self, pid, ticks, *, parent=1, began=0, mark=b"", line=b"x"):
            own = tmp_path / str(pid)
            own.mkdir(exist_ok=True)
            (own / "cmdline").write_bytes(line)
            (own / "environ").write_bytes(b"A=1\0" + mark + b"\0")
            fields = ["S", parent, *[0] * 9, ticks - 1, 1, *[0] * 6, began, 0]
            (own / "stat").write_text(f"{pid} (a ) b) {' '.join(map(str, fields))}\n")

    return Machine()


def test_what_others_did_is_told_from_what_the_run_did(surroundings, machine):
    def look(at_s):
        return surroundings.look(MARK, (50,), at_s, machine.folder)

    machine.host(1000, 0)
    machine.run(50, 100)
    machine.run(51, 100, parent=50)  # forked, without a mark
    machine.run(60, 100, mark=MARK.encode())
    machine.run(61, 100, parent=60)
    machine.run(70, 100)
    machine.run(2, 100, line=b"")  # of the kernel
    found = surroundings.Surroundings(look(100.0), look(100.0))
    machine.host(1000 + 20 * HZ, 2 * HZ)
    for pid, parent in ((50, 1), (51, 50), (61, 60), (2, 1)):
        machine.run(pid, 100 + 9 * HZ, parent=parent, line=b"" if pid == 2 else b"x")
    machine.run(60, 100 + 9 * HZ, mark=MARK.encode())
    machine.run(70, 100 + 3 * HZ)
    machine.run(71, 2 * HZ, began=105 * HZ)  # began after the last look
    machine.run(72, 8 * HZ, began=50 * HZ)  # was overlooked then: who knows when it worked
    found.see(look(110.0))
    assert found.summary() == {
        "seconds": 10.0,
        "others_cores": 0.5,
        "others_cores_worst": 0.5,
        "steal": 0.1,
    }
    found.see(look(130.0))
    assert found.summary()["others_cores"] == pytest.approx(5 / 30, abs=0.001)
    assert found.summary()["others_cores_worst"] == 0.5


@pytest.mark.parametrize(
    ("found", "reasons"),
    [
        ({}, 0),
        ({"others_cores": 0.2, "steal": 0.02}, 0),
        ({"others_cores": 0.21, "steal": 0.0}, 1),
        ({"others_cores": 0.5, "steal": 0.03}, 2),
    ],
)
def test_when_a_run_does_not_count(surroundings, found, reasons):
    assert len(surroundings.contaminated(found, cores=4)) == reasons


def test_real_processes_are_found(surroundings):
    sleeper = [sys.executable, "-c", "print(flush=True); input()"]
    name, _, value = MARK.partition("=")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    marked = subprocess.Popen(sleeper, env={**os.environ, name: value}, **pipes)
    other = subprocess.Popen(sleeper, **pipes)
    try:
        for each in (marked, other):  # which has a command line a moment after it was started
            each.stdout.readline()
        pids = {pid for pid, _ in surroundings.look(MARK, (), 0.0).others}
        assert {other.pid, os.getpid()} <= pids and marked.pid not in pids
        assert other.pid not in {p for p, _ in surroundings.look(MARK, (os.getpid(),), 0.0).others}
    finally:
        for each in (marked, other):
            each.communicate(b"\n")


def test_a_run_beside_others_does_not_take_the_place_of_a_clean_one(script, tmp_path, monkeypatch):
    common = script("common")
    monkeypatch.setattr(common, "BENCH", tmp_path)
    seen = {"others_cores": 0.0}
    monkeypatch.setattr(common.guard, "seen", lambda: seen)

    def write(others, quick=False):
        seen["others_cores"] = others
        path = common.write_result("r", quick=quick, rows=[], headline={"others": others})
        assert json.loads(path.read_text())["headline"]["others"] == others
        return path.relative_to(tmp_path / "results").as_posix()

    assert [write(9.0), write(8.0), write(0.0), write(9.0), write(0.0)] == [
        *("r.json", "r.json", "r.json", "r.contaminated.json", "r.json")
    ]
    (tmp_path / "results/r.json").write_text('{"name": "r"}')  # nobody knows how it was measured
    assert write(9.0) == "r.json"
    assert [write(0.0, quick=True), write(9.0, quick=True)] == ["quick/r.json"] * 2


@pytest.mark.parametrize(
    ("name", "before", "after", "same"),
    [
        ("a.py", "x = 1\n\ndef f():\n    return 2", 'x = 1\n"""Of x."""\ndef f(): return 2', True),
        ("a.py", "x = 1", "x = 2", False),
        ("a.py", "x = 'a b'", "x = 'a  b'", False),
        ("A.java", "int a; // b\n/** c */ int d;", "int a;\nint d;", True),
        ("a.c", "f(a,\n  b);", "f(a,\n\t\tb); /* why */", True),
        ("a.c", 'f("//");', 'f("//x");', False),
        ("a.c", "f('\"', /* a */ b);", "f('\"', b);", True),
        ("a.h", 'f("/*", x, "*/");', 'f("/*", y, "*/");', False),
        ("A.java", 'f("""\n  a // b\n""");', 'f("""\n  a // c\n""");', False),
        ("A.java", r'f("\\"); // a', r'f("\\"); // b', True),
        ("a.h", "#define A\nB", "#define A B", False),
        ("a.c", "a b", "ab", False),
        ("a.toml", "a # b", "a # c", False),
    ],
)
def test_what_only_reads_otherwise_is_the_same(script, name, before, after, same):
    meaning = script("status").meaning
    assert (meaning(name, before).strip() == meaning(name, after).strip()) is same


def test_a_result_is_good_until_what_it_measures_changes(script, repository):
    status = script("status")
    for folder in ("plugins/triton", "allocator"):
        (repository / folder).mkdir(parents=True)
        (repository / folder / "a.py").write_text("1")
    first = repository.commit()
    origin = {"commit": first, "dirty": False, "date": "2099-01-01T00:00:00+00:00"}

    def wrong(name="triton_slo", **changes):
        content = {"origin": origin | changes, "surroundings": {"contaminated": []}}
        return status.judge(name, content, repository.path).wrong

    assert wrong() == []
    assert wrong(dirty=True) == ["the tree was changed when it ran"]
    (repository / "allocator/a.py").write_text("2")
    repository.commit()
    assert wrong() == [] and len(wrong("somewhat_new")) == 1
    (repository / "plugins/triton/a.py").write_text("2")
    repository.commit()
    [text] = wrong()
    assert text.startswith("1 files changed since of ") and "plugins/triton" in text
    (repository / "plugins/triton/a.py").write_text('"""As it was."""\n\n1  # one')
    repository.commit()
    assert wrong() == []
    (repository / "plugins/triton/a.py").unlink()
    (repository / "plugins/triton/b.py").write_text("1")
    repository.commit()
    assert wrong()[0].startswith("2 files ")
    unknown = "0" * 40
    assert wrong(commit=unknown) == [] and len(wrong(commit=unknown, date="2001-01-01")) == 1
    assert len(status.judge("swap", {}).wrong) == 1
    beside = {"origin": origin, "surroundings": {"contaminated": ["other processes took"]}}
    assert "other processes took" in status.judge("swap", beside, repository.path).wrong
    assert status.judge("soak_pool", beside, repository.path).wrong == []  # it measures no times


def test_every_benchmark_that_is_named_exists(script):
    status = script("status")
    missing = [name for name in status.ROOMS if not (status.BENCH / f"{name}.py").exists()]
    assert missing == [name for name in missing if name in ("cluster", "cluster_sim")]
    rooms = {room.removeprefix(":!") for rooms in status.ROOMS.values() for room in rooms}
    gone = [room for room in rooms if not (status.BENCH.parent / room).exists()]
    assert set(gone) <= {"allocator/cluster", "plugins/ray"}


def test_no_benchmark_of_torchserve_asks_as_a_cluster_does(script):
    """Their results outlive a change of the file that status.ASKS names."""
    for path in script("status").BENCH.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "TorchServeHost" not in text and "torchserve.process import" not in text, path
        assert "process_of(" not in text or 'name="triton"' in text, path
