"""Programs in C that drive parts of batching/c."""

import subprocess

import pytest

from shunter.nic_frontend import build


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory):
    """Compiles a program with these parts, under the sanitizers and with no header of others."""
    folder, _ = build.SOURCES

    def compiled(program, parts):
        found = tmp_path_factory.mktemp("c") / program.stem
        sources = [program, *(folder / f"{part}.c" for part in parts)]
        flags = ["-std=c11", "-O1", "-g", "-ffp-contract=off", *build.WARNINGS, *build.SANITIZERS]
        folders = sorted({each.parent for each in folder.rglob("*.h")})
        command = [*build.compiler(), *flags, *(f"-I{each}" for each in folders)]
        command += map(str, sources)
        subprocess.run([*command, "-o", str(found)], check=True)
        return found

    return compiled
