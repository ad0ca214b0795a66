"""Payloads that land on a device, where the processor must not look."""

import os
import subprocess
from pathlib import Path

from shunter.nic_frontend import build


def test_what_the_processor_cannot_read_is_not_read(tmp_path):
    program = tmp_path / "far_payloads"
    sources = [Path(__file__).with_suffix("").with_name("far_payloads.c"), *build.sources()]
    flags = ["-std=c11", "-O1", "-g", '-DSHUNTER_SOURCE=""', *build.WARNINGS[:2], *build.includes()]
    command = [os.environ.get("CC", "cc"), *flags, *map(str, sources), *build.LIBRARIES]
    subprocess.run([*command, "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 hellos\n")
