"""Results that are older than the code that they measure, or were not measured alone.

A line for each committed full result: when and of which commit it is, how many files that its
benchmark measures are others now, and what is wrong with it. Ends with 1 when something is. What
only reads otherwise, comments, docstrings and white space, is the same code. Other work beside a
benchmark is wrong where it measures times.

Examples:
    python bench/status.py
    python bench/status.py --verbose         # with the files
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import BENCH, git

ASKS = "plugins/torchserve/host.py"
"""Who asks the management API: commands and machines of a cluster, and none of these servers."""
TORCHSERVE = (
    *("batching/forming", "batching/page", "handlers/torchserve", "plugins/torchserve"),
    f":!{ASKS}",
)
TRITON = ("batching/c", "batching/queue", "handlers/queue", "plugins/triton")
NETWORK = ("batching/c", "batching/queue", "handlers/queue", "nic_frontend")
POOL = ("allocator/memory", "handlers/pool", "handlers/torchserve/pool", "handlers/weights")
PLANS = ("allocator/planning", "plugins/profiling")
PREEMPTION = ("batching/preemption", "handlers/preemption")
PLACEMENT = ("allocator/placement", "plugins/control")
ROOMS: dict[str, tuple[str, ...]] = {
    "cluster": ("allocator/cluster", "plugins/ray", ASKS),
    "cluster_sim": ("allocator/cluster",),
    "deadlines": TORCHSERVE,
    "disb": (*TORCHSERVE, *PREEMPTION),
    "estimator": PLANS,
    "fairness": (*TORCHSERVE, *POOL),
    "faults": TORCHSERVE,
    "first_hour": ("plugins/cli", "plugins/doctor", "plugins/view"),
    "http_peers": TORCHSERVE,
    "http_sweep": TORCHSERVE,
    "many_models": (*TORCHSERVE, *POOL),
    "mig_faults": ("allocator/devices", "plugins/control"),
    "mixed_classes": TORCHSERVE,
    "optimizer": PLANS,
    "packrat_micro": (*PLANS, "handlers/placement"),
    "packrat_reconfigure": (*TORCHSERVE, "handlers/placement", "plugins/control"),
    "packrat_serving": (*TORCHSERVE, *PLANS),
    "pointwise": ("handlers/placement",),
    "preempt": PREEMPTION,
    "profile_cost": PLANS,
    "protean_cpu": (*TORCHSERVE, *PREEMPTION, *PLACEMENT),
    "protean_sim": ("allocator/placement",),
    "rafiqi_cache": (*TORCHSERVE, *POOL),
    "slo_goodput": TORCHSERVE,
    "slowdown": ("allocator/placement",),
    "soak": (*TORCHSERVE, *NETWORK, *POOL, *PREEMPTION, "plugins/control"),
    "soak_pool": (*TORCHSERVE, *POOL),
    "start_up": (*TORCHSERVE, *POOL, "handlers/placement"),
    "swap": POOL,
    "threshold": TORCHSERVE,
    "two_versions": TORCHSERVE,
    "worker_receive": ("handlers/torchserve",),
    **dict.fromkeys(("rpc_attack", "rpc_batches", "rpc_fair", "rpc_faults", "rpc_load"), NETWORK),
    **dict.fromkeys(("rpc_models", "rpc_tax", "rpc_threads"), NETWORK),
}
"""What each measures, with its own script. Those that begin with triton: what is behind Triton;
others not named here: everything that is run."""
UNTIMED = {"faults", "mig_faults", "product", "soak", "soak_pool", "triton_faults"}
"""These count what is lost or wrong and how memory grows: other work beside them does no harm."""
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
STRING_OR_NOTHING = re.compile(
    r"""(?P<string>\"{3}.*?\"{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?:\s|//[^\n]*|/\*.*?\*/)+""",
    re.DOTALL,
)
"""Of Java and C: strings and characters; what lies between words."""
EVERYTHING = ("allocator", "batching", "handlers", "nic_frontend", "plugins")


@dataclass
class Judged:
    """One result."""

    name: str
    date: str = "?"
    commit: str = "?"
    wrong: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Files."""


def rooms_of(name: str) -> tuple[str, ...]:
    """What a benchmark measures, with its own script."""
    measured = TRITON if name.startswith("triton_") else ROOMS.get(name, EVERYTHING)
    return (*measured, f"bench/{name}.py")


def judge(name: str, content: dict[str, Any], tree: Path = BENCH.parent) -> Judged:
    """Compare a result with the code."""
    origin = content.get("origin")
    if not origin or not origin.get("commit"):
        return Judged(name, wrong=["does not say of which commit it is: measure again"])
    found = Judged(name, origin["date"][:16], origin["commit"][:9])
    paths = rooms_of(name)
    found.changed = changed(tree, origin["commit"], origin["date"], paths)
    if found.changed:
        found.wrong.append(f"{len(found.changed)} files changed since of {', '.join(paths)}")
    if origin.get("dirty"):
        found.wrong.append("the tree was changed when it ran")
    if name not in UNTIMED:
        found.wrong += content.get("surroundings", {}).get("contaminated", [])
    return found


def changed(tree: Path, commit: str, date: str, paths: Sequence[str]) -> list[str]:
    """Files below these paths that mean something else than at a commit, or on a date if that
    commit is not known here."""
    if git(tree, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        commit = git(tree, "rev-list", "-1", f"--before={date}", "HEAD") or EMPTY_TREE
    names = git(tree, "diff", "--name-only", "--no-renames", commit, "HEAD", "--", *paths)

    def text(revision: str, name: str) -> str | None:
        content = git(tree, "show", f"{revision}:{name}")
        return None if content is None else meaning(name, content)

    return [n for n in (names or "").splitlines() if text(commit, n) != text("HEAD", n)]


def meaning(name: str, text: str) -> str:
    """The same for code that only reads otherwise."""
    suffix = Path(name).suffix
    if suffix == ".py":
        return ast.dump(_Undocumented().visit(ast.parse(text)))
    if suffix in {".java", ".c", ".h"}:
        return STRING_OR_NOTHING.sub(
            lambda found: found["string"] or ("\n" if "\n" in found[0] else " "), text
        )
    return text


class _Undocumented(ast.NodeTransformer):
    """Without strings that stand alone."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


def results(folder: Path = BENCH / "results") -> dict[str, dict[str, Any]]:
    """The full ones that are committed."""
    read = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))
    return {each["name"]: each for each in read if isinstance(each, dict) and "headline" in each}


def main() -> None:
    """Print what is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verbose", action="store_true", help="with the files")
    verbose = parser.parse_args().verbose
    judged = [judge(name, content) for name, content in results().items()]
    for each in judged:
        print(f"{each.name:20} {each.date:16} {each.commit:9} {'; '.join(each.wrong) or 'good'}")
        for name in each.changed if verbose else ():
            print(f"    {name}")
    sys.exit(any(each.wrong for each in judged))


if __name__ == "__main__":
    main()
