"""What a user can count on: everything is documented, every example runs, the page is small.

No timing but that of the first hour, which ``bench/first_hour.py`` measures and this one quotes.

    undocumented_settings   keys of shunter.toml and of ``shunter:`` in archives, and variables
    undocumented_metrics    names with which metrics are exported
    undocumented_errors     messages of the code that docs/reference/messages.md does not have
    examples_passing        of examples/
    page_kb                 the page /shunter/
    first_hour_minutes      of the last run

Examples:
    python bench/product.py
    python bench/product.py --without-examples
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from common import BENCH, Row, result_path, write_result

from shunter.plugins.doctor.templates import sections
from shunter.plugins.http_view import DASHBOARD

NAME = "product"
ROOT = BENCH.parent
ROOMS = ("batching", "allocator", "handlers", "nic_frontend", "model_store", "plugins")
BETWEEN_PROCESSES = {
    *("SHUNTER_BODIES", "SHUNTER_CLIENT_TIMEOUT_NS", "SHUNTER_CLUSTER_NODE"),
    *("SHUNTER_CONTINUES", "SHUNTER_CORES"),
    *("SHUNTER_GENTLE", "SHUNTER_METRICS", "SHUNTER_OUTLIVES_HOST", "SHUNTER_POOL_LOCK"),
    *("SHUNTER_POOL_SOCKET", "SHUNTER_PREEMPTIBLE", "SHUNTER_RESPONSE_TIMEOUT_S", "SHUNTER_RETRY"),
    *("SHUNTER_SCHED", "SHUNTER_SHARE_WITH", "SHUNTER_SLICES", "SHUNTER_SLOT", "SHUNTER_SLO_NS"),
    *("SHUNTER_SPIN_US", "SHUNTER_PAGE", "SHUNTER_STARTUP_TIMEOUT_S", "SHUNTER_THREADS"),
}
"""Variables with which one process of Shunter tells another; nobody else sets them."""


def texts(folder: str, *suffixes: str) -> Iterator[str]:
    """Of all files of these kinds."""
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in suffixes and "build" not in path.parts:
            yield path.read_text(encoding="utf-8")


def undocumented_settings() -> list[str]:
    """Keys and variables that no page names."""
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    keys = {f"{name}.{key}" for name, _, known in sections() for key in known}
    missing = [key for key in keys if f"| `{key.partition('.')[2]}` |" not in page]
    code = "\n".join(text for room in ROOMS for text in texts(room, ".py", ".java"))
    docs = "\n".join(texts("docs", ".md"))
    variables = set(re.findall(r"[\"'](SHUNTER_[A-Z_]+)[\"']", code)) - BETWEEN_PROCESSES
    missing += [each for each in variables if f"`{each}" not in docs]
    model = (ROOT / "docs/reference/model-config.md").read_text(encoding="utf-8")
    java = "\n".join(texts("plugins/torchserve/java/org/shunter/torchserve/settings", ".java"))
    of_models = set(re.findall(r'"shunter\.([a-z_]+)"', java))
    missing += [f"shunter.{each}" for each in of_models if f"`{each}`" not in model]
    return sorted(missing)


def undocumented_metrics() -> list[str]:
    """Names in the code that the page of metrics does not have."""
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    view = "\n".join(texts("plugins/torchserve/java/org/shunter/torchserve/view", ".java"))
    view += (ROOT / "plugins/prometheus.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"(shunter_[a-z0-9_]+[a-z0-9])"', view))
    return sorted(name for name in names if f"`{name}`" not in page)


def undocumented_errors() -> list[str]:
    """Messages that the page of messages does not have."""
    sys.path.insert(0, str(ROOT / "docs"))
    import messages

    page = (ROOT / "docs/reference/messages.md").read_text(encoding="utf-8")
    found = [
        text
        for rooms in messages.ROOMS.values()
        for room in rooms
        for text in messages.python_messages(messages.sources(ROOT, room, ".py"))
    ]
    found += messages.java_messages(messages.sources(ROOT, "plugins/torchserve/java", ".java"))
    return [text for text in found if f"* `{text.replace('`', chr(39))}`" not in page]


def run_example(path: Path) -> Row:
    """Whether it ends well."""
    print(f"{path.name} ...", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=600
    )
    good = done.returncode == 0
    return {"example": path.stem, "passes": good, "said": (done.stdout + done.stderr)[-600:]}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--without-examples", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the same")
    args = parser.parse_args()
    lacking = {
        "settings": undocumented_settings(),
        "metrics": undocumented_metrics(),
        "errors": undocumented_errors(),
    }
    rows: list[Row] = [{"undocumented": what, "names": names} for what, names in lacking.items()]
    top: Row = {f"undocumented_{what}": len(names) for what, names in lacking.items()}
    if not args.without_examples:
        every = sorted((ROOT / "examples").glob("*.py"))
        every = [path for path in every if path.stem != "serving"]
        examples = [run_example(path) for path in every]
        rows += examples
        top["examples_passing"] = sum(row["passes"] for row in examples)
    top["page_kb"] = round(DASHBOARD.stat().st_size / 1000, 1)
    hour = result_path("first_hour", quick=False)
    if hour.exists():
        found = json.loads(hour.read_text(encoding="utf-8"))
        top["first_hour_minutes"] = found["headline"]["first_hour_minutes"]
    path = write_result(NAME, quick=args.quick, rows=rows, headline=top)
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(top, indent=1))
    print(path)


if __name__ == "__main__":
    main()
