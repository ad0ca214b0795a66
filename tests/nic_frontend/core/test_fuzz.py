"""Mutated datagrams through the C core under the sanitizers; `make fuzz` has many more."""

import os
import subprocess
from pathlib import Path

import hypothesis
import pytest

from shunter.nic_frontend import build

HERE = Path(__file__).parent
FUZZ = hypothesis.settings.get_current_profile_name() == "fuzz"
COUNT = 12_000_000 if FUZZ else 300_000


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    program = tmp_path_factory.mktemp("fuzz") / "fuzz_core"
    shared, folder = build.SOURCES
    ours = (HERE / "fuzz_core.c", HERE / "check_holds.c")
    parts = [folder / "common/siphash.c", shared / "preemption/hold_line.c"]
    for name in ("core", "path", "series"):
        parts += (folder / name).glob("*.c")
    sources = [*ours, *parts]
    flags = ["-std=c11", "-O1", "-g", *build.WARNINGS[:2], "-Werror", *build.SANITIZERS]
    flags += build.includes()
    command = [os.environ.get("CC", "cc"), *flags, *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_datagram_writes_outside_of_its_entry(fuzzer, seed, capsys):
    done = subprocess.run(
        [str(fuzzer), str(COUNT // 2), str(seed)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    numbers = [int(text.split()[0]) for text in done.stdout.split(",")]
    datagrams, places, _, held, shared, parts = numbers
    assert datagrams >= COUNT // 2 and places > datagrams / 80
    assert parts > 1000 if seed == 3 else shared > 100
    assert datagrams / 20 < held < datagrams * 19 / 20
    if FUZZ:
        with capsys.disabled():
            print(f"\n{datagrams} datagrams through the C core under the sanitizers")
