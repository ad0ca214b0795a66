"""A stranger's first hour, step by step, in an empty environment: each command and its time.

Makes a wheel of this checkout and installs it into a new virtual environment, as README and docs
say; then serves, asks, looks, breaks something and finds out why. What is printed is what a
stranger would see. ``--write`` puts it into docs/first-hour.md. Packages come from the network or
from pip's cache, so the time of the first step is the network's.

    first_hour_minutes   all steps together
    steps_failed         those that did not end as they should

Examples:
    python bench/first_hour.py
    python bench/first_hour.py --write
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from common import BENCH, Row, write_result

from shunter.plugins.torchserve.isolation import Ports, free_ports

NAME = "first_hour"
ROOT = BENCH.parent
PAGE = ROOT / "docs/first-hour.md"
LINES = 14
"""Of what a command printed, that are shown."""
IMAGE = "{'image': [[0, 3, 15, 16, 8, 0, 0, 0]] * 8}"
NOISE = (
    "WARNING: Location",  # of a mirror of packages
    "bash: cannot set terminal process group",  # who types has a terminal
    "bash: no job control in this shell",
    "WARNING: sun.reflect.Reflection",
    "nvidia-smi not available",
)
"""Beginnings of lines that tell a reader nothing."""


@dataclass(frozen=True)
class Step:
    """One command, or a few."""

    title: str
    command: str
    status: int = 0
    shows: str = ""
    """A pattern of what it must print."""


def steps(port: int, management: int) -> list[Step]:
    """All of them; ``shunter serve`` runs in the background from the fourth on."""
    http, manage = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{management}"
    slow = "import time\n\n\ndef handle(data, context):\n    time.sleep(0.2)\n    return data\n"
    return [
        Step(
            "Install",
            "python3 -m venv venv && . venv/bin/activate\n"
            "pip install -q torch==2.13.0\n"
            "pip install -q shunter-*.whl scikit-learn pillow",
        ),
        Step("Is anything missing?", "shunter doctor", shows="Java"),
        Step("A model", "shunter pack digits --store store", shows="digits.mar"),
        Step(
            "Serve it",
            f"shunter serve --store store --no-tokens --port {port} --grpc GRPC &> serve.log &\n"
            "until grep -q 'Ctrl-C drains' serve.log; do sleep 0.2; done; cat serve.log",
            shows="dashboard",
        ),
        Step(
            "Ask it",
            f'python -c "import json; print(json.dumps({IMAGE}))" > image.json\n'
            f"curl -s {http}/predictions/digits -H 'content-type: application/json' -d @image.json",
            shows='"label"',
        ),
        Step("Look", f"shunter status --management {manage}", shows="digits"),
        Step(
            "The page, on a screen",
            "chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage "
            f"--user-data-dir=browser --virtual-time-budget=9000 --dump-dom {manage}/shunter/ "
            "2> /dev/null | grep -o 'digits 1.0\\|in TorchServe[^<]*\\|digits/1.0: [^<]*'",
            shows=r"(?s)in TorchServe 0.12.*digits 1.0.*digits/1.0: it is served",
        ),
        Step(
            "A model that does not load",
            "mkdir broken && echo 'import nosuchmodule' > broken/handler.py\n"
            "echo 'def handle(data, context): return data' >> broken/handler.py\n"
            "shunter pack broken --store store\n"
            f"shunter load broken.mar --management {manage}",
            status=2,
            shows="Failed to start workers .*ModuleNotFoundError: No module named 'nosuchmodule'",
        ),
        Step(
            "A request that cannot be in time, and why",
            f"mkdir slow && printf '{slow.encode('unicode_escape').decode()}' > slow/handler.py\n"
            "shunter pack slow --store store\n"
            f"shunter load slow.mar --management {manage}\n"
            f"for i in 1 2 3 4 5; do curl -s {http}/predictions/slow -d x "
            "-H 'x-shunter-deadline-ms: 250' -o answer & done; wait %2 %3 %4 %5 %6\n"
            f"shunter explain last --bad --model slow --count 9 --management {manage}",
            shows="deadline",
        ),
        Step(
            "What happened, and why",
            f"shunter events --management {manage}",
            shows="(?s)nosuchmodule.*dropped: too late",
        ),
        Step("Stop", "kill -INT %1; wait %1; tail -1 serve.log", shows="stopped"),
    ]


def wheel(folder: Path) -> None:
    """Of this checkout, as a release would have it."""
    source = folder / "source"
    files = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("tests/", "bench/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(folder), str(source)], check=True)
    shutil.rmtree(source)


def run(folder: Path, ports: Ports) -> list[Row]:
    """Do all steps in one shell, as somebody at a terminal would."""
    every = steps(ports.inference, ports.inference + 1)  # management is beside it
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SHUNTER_", "PYTHON"))}
    shell = subprocess.Popen(
        ["bash", "-m"],
        cwd=folder,
        env=environment | {"COLUMNS": "120", "VIRTUAL_ENV": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert shell.stdin is not None and shell.stdout is not None
    rows: list[Row] = []
    for number, step in enumerate(every):
        print(f"{step.title} ...", file=sys.stderr, flush=True)
        begun, mark = time.monotonic(), f"<end of step {number}>"
        command = step.command.replace("GRPC", str(ports.grpc_inference))
        shell.stdin.write(f"{command}\necho \"{mark} $?\"\n")
        shell.stdin.flush()
        said: list[str] = []
        for line in shell.stdout:
            if found := re.search(rf"{mark} (\d+)", line):
                status = int(found[1])
                said += [line[: found.start()]] if found.start() else []
                break
            if not line.startswith(NOISE):
                said.append(line.rstrip())
        else:
            status = -1
        text = "\n".join(said)
        rows.append(
            {
                "step": step.title,
                "command": step.command,
                "seconds": round(time.monotonic() - begun, 1),
                "status": status,
                "good": status == step.status and re.search(step.shows, text) is not None,
                "said": text[-4000:],
            }
        )
        if not rows[-1]["good"]:
            print(f"status {status}, expected {step.status} and {step.shows!r}:\n{text[-2000:]}")
    shell.stdin.close()
    shell.wait(60)
    return rows


def page(rows: list[Row], ports: dict[int, int]) -> str:
    """As documentation; ``ports``: the usual ones instead of those that were free."""
    lines = [
        "# The first hour",
        "",
        "What a stranger types, in a folder with nothing but a wheel of Shunter, which "
        "`pip wheel --no-deps -w FOLDER CHECKOUT` makes.",
        "The times are those of a machine with "
        f"{os.cpu_count()} CPUs that did other work, too (load average {os.getloadavg()[2]:.0f}); "
        "that of the first step is mostly the network's: torch is large. "
        "`bench/first_hour.py` does it all again and writes this page.",
        "",
    ]
    for row in rows:
        shown = row["said"].strip("\n").splitlines()
        cut = [*shown[:LINES], "..."] if len(shown) > LINES else shown
        lines += [f"## {row['step']}: {row['seconds']:g} s", "", "```", row["command"], "```", ""]
        if any(cut):
            lines += ["```", *(line[:140] for line in cut), "```", ""]
    text = "\n".join(lines)
    for ours, usual in ports.items():
        text = text.replace(str(ours), str(usual))
    return text.replace(" --port 8080 --grpc GRPC", "")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="docs/first-hour.md, too")
    parser.add_argument("--quick", action="store_true", help="the same")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shunter-hour-") as folder:
        wheel(Path(folder))
        ports = free_ports()
        rows = run(Path(folder), ports)
    top = {
        "first_hour_minutes": round(sum(row["seconds"] for row in rows) / 60, 1),
        "steps_failed": sum(not row["good"] for row in rows),
    }
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top)  # before the tree changes
    if args.write:
        usual = {ports.inference + i: 8080 + i for i in range(3)}
        usual |= {ports.grpc_inference + i: 7070 + i for i in range(2)}
        PAGE.write_text(page(rows, usual), encoding="utf-8")
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
