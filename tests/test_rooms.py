"""The rules of the rooms: imports point one way, pure files stay pure, nothing grows too large."""

import ast
import configparser
import importlib
import io
import re
import tokenize
from pathlib import Path

import pytest

from shunter.batching import emit
from shunter.handlers.pool import emit as seat_emit
from shunter.nic_frontend import emit as wire_emit
from shunter.plugins.triton import emit as triton_emit

ROOT = Path(__file__).parents[1]

ROOMS = {
    "batching": set(),
    "allocator": set(),
    "handlers": {"batching", "allocator"},
    "nic_frontend": {"batching"},
    "model_store": {"batching"},
    "plugins": {"batching", "allocator", "handlers", "nic_frontend", "model_store"},
}
"""Room -> other rooms that any of its folders may import. Nobody imports plugins."""

FOLDERS = {
    "batching": {"batching/page", "batching/queue"},
    "batching/forming": set(),
    "batching/page": set(),
    "batching/preemption": {"batching/page"},
    "batching/queue": {"batching/page"},
    "allocator": set(),
    "allocator/cluster": {"allocator/placement"},
    "allocator/cpus": set(),
    "allocator/devices": {"allocator/cpus"},
    "allocator/devices/simulated": {"allocator/devices"},
    "allocator/memory": set(),
    "allocator/placement": set(),
    "allocator/planning": set(),
    "handlers": set(),
    "handlers/device": set(),
    "handlers/placement": set(),
    "handlers/pool": {"handlers/weights"},
    "handlers/preemption": {"handlers/device"},
    "handlers/queue": {"handlers/device", "handlers/preemption"},
    "handlers/torchserve": {
        "handlers",
        "handlers/placement",
        "handlers/pool",
        "handlers/preemption",
        "handlers/queue",
        "handlers/weights",
    },
    "handlers/torchserve/pool": {
        "handlers",
        "handlers/placement",
        "handlers/pool",
        "handlers/preemption",
        "handlers/queue",
        "handlers/torchserve",
        "handlers/weights",
    },
    "handlers/weights": set(),
    "nic_frontend": {"nic_frontend/wire"},
    "nic_frontend/wire": set(),
    "nic_frontend/server": {"nic_frontend", "nic_frontend/wire"},
    "nic_frontend/client": {"nic_frontend", "nic_frontend/client/requests", "nic_frontend/wire"},
    "nic_frontend/client/requests": {"nic_frontend/wire"},
    "nic_frontend/tritonlike": {
        "nic_frontend/client",
        "nic_frontend/client/requests",
        "nic_frontend/wire",
    },
    "model_store": set(),
    "model_store/digits": {"model_store"},
    "model_store/minilm": {"model_store"},
    "model_store/resnet50": {"model_store"},
    "plugins": set(),
    "plugins/control": {"plugins", "plugins/profiling"},
    "plugins/profiling": {"plugins"},
    "plugins/view": {"plugins", "plugins/profiling"},
    "plugins/torchserve": {"plugins"},
    "plugins/triton": {"plugins"},
    "plugins/triton/serving": {"plugins", "plugins/triton"},
    "plugins/triton/existing": {
        "plugins",
        "plugins/control",
        "plugins/profiling",
        "plugins/triton",
    },
    "plugins/ray/records": {"plugins"},
    "plugins/ray/gateway": {"plugins/ray/records"},
    "plugins/ray/providers": {"plugins"},
    "plugins/ray": {
        "plugins",
        "plugins/hosts",
        "plugins/ray/gateway",
        "plugins/ray/providers",
        "plugins/ray/records",
    },
    "plugins/hosts": {
        "plugins",
        "plugins/torchserve",
        "plugins/triton",
        "plugins/triton/serving",
        "plugins/triton/existing",
    },
    "plugins/doctor": {"plugins", "plugins/control", "plugins/hosts"},
    "plugins/cli/observe": {"plugins", "plugins/doctor", "plugins/hosts", "plugins/view"},
    "plugins/cli": {
        "plugins",
        "plugins/cli/observe",
        "plugins/control",
        "plugins/doctor",
        "plugins/hosts",
        "plugins/profiling",
        "plugins/ray",
        "plugins/view",
    },
}
"""Folder -> other folders of its own room that it may import. Only plugins/hosts knows servers."""

OF_A_SERVER = {
    "boto3": ("plugins/ray/providers",),
    "ray": ("plugins/ray",),
    "ts": ("handlers/torchserve", "plugins/torchserve", "model_store"),
    "tritonclient": ("nic_frontend/tritonlike", "plugins/triton"),
}
"""Package of a server -> where it may be imported."""

OF_NO_SERVER = (
    "handlers/device",
    "handlers/placement",
    "handlers/pool",
    "handlers/preemption",
    "handlers/queue",
    "handlers/weights",
    "nic_frontend/server",
    "nic_frontend/wire",
    "plugins/profiling",
    "plugins/view",
)
"""Where no name in the code may be that of a server; comments may say how one behaves."""

UNAWARE = ("allocator", "batching", "plugins/control")
"""Where no text may name a server."""

EMITTER = "batching/emit.py"
"""It writes a Java file, and must know in which package."""

PURE_FOLDERS = (
    "allocator/cluster",
    "allocator/placement",
    "allocator/planning",
    "batching/forming",
    "batching/preemption",
    "nic_frontend/client/requests",
    "nic_frontend/wire",
)
PURE_FILES = (
    "allocator/cpus/cores.py",
    "allocator/cpus/cpu_list.py",
    "allocator/cpus/topology.py",
    "allocator/devices/advice.py",
    "allocator/devices/geometry.py",
    "allocator/devices/instances.py",
    "allocator/devices/slices.py",
    "allocator/devices/standing.py",
    "allocator/devices/simulated/driver.py",
    "allocator/devices/simulated/state.py",
    "allocator/devices/simulated/tables.py",
    "allocator/memory/cache.py",
    "allocator/memory/devices.py",
    "allocator/memory/scheduling.py",
    "batching/page/codec.py",
    "batching/page/fields.py",
    "batching/page/hold_words.py",
    "batching/page/layout.py",
    "batching/page/records.py",
    "batching/page/slices.py",
    "batching/page/slot_fields.py",
    "batching/page/values.py",
    "batching/queue/layout.py",
    "batching/queue/packed.py",
    "batching/queue/packed_form.py",
    "batching/queue/tensor_spec.py",
    "handlers/device/ladder.py",
    "handlers/pool/handover.py",
    "handlers/weights/layout.py",
    "nic_frontend/server/absences.py",
    "nic_frontend/server/model_policy.py",
    "plugins/doctor/checks.py",
    "plugins/doctor/records.py",
    "plugins/ray/records/demand.py",
    "plugins/ray/records/directory.py",
    "plugins/ray/gateway/dispatch.py",
    "plugins/ray/gateway/forwarding.py",
    "plugins/ray/records/loads.py",
    "plugins/triton/existing/statistics.py",
    "plugins/triton/layout.py",
)
"""Numbers in, numbers out; they import only each other of ours."""

PURE_C = {"batching/c/forming": {"float.h", "math.h", "stdbool.h", "stdint.h"}}
"""Folder of C that only computes -> what it includes of the C library; else only its own headers.
"""

IMPURE = {
    "asyncio",
    "ctypes",
    "httpx",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "psutil",
    "selectors",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "torch",
}

ROOM_FILES = sorted(
    path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "build" not in path.parts
)
ALL_FILES = ROOM_FILES + sorted(
    path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")
)


def relative(path):
    return path.relative_to(ROOT).as_posix()


def folder_of(path):
    return relative(path.parent)


def is_under(path, folders):
    return any(relative(path).startswith(f"{folder}/") for folder in folders)


PURE = [path for path in ROOM_FILES if is_under(path, PURE_FOLDERS) or relative(path) in PURE_FILES]


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path):
    """Full names of what a file imports, wherever in the file; '.' for a relative import."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." if node.level else node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if not node.level}
    return found


def packages_of(path):
    """First names of what a file imports."""
    return {name.split(".")[0] for name in imports_of(path)}


def files_of(path):
    """The files of ours that a file imports; a package as a whole is its ``__init__.py``."""
    found = set()
    for name in imports_of(path):
        place = ROOT / name.removeprefix("shunter.").replace(".", "/")
        if name.startswith("shunter."):
            found |= {
                each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()
            }
    return found


def names_in(path):
    """Every identifier of the code, with the parts of what it imports."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


def assert_no_cycle(table):
    done, left = set(), dict(table)
    while left:
        free = {name for name, needs in left.items() if needs <= done}
        assert free, f"cycle among {sorted(left)}"
        done |= free
        left = {name: needs for name, needs in left.items() if name not in free}


def test_the_tables_have_no_cycle():
    assert_no_cycle(ROOMS)
    assert_no_cycle(FOLDERS)


def test_the_table_of_folders_names_those_that_there_are_and_stays_in_a_room():
    assert set(FOLDERS) == {folder_of(path) for path in ROOM_FILES if path.name == "__init__.py"}
    for folder, needs in FOLDERS.items():
        assert {each.split("/")[0] for each in (folder, *needs)} == {folder.split("/")[0]}


@pytest.mark.parametrize("path", ROOM_FILES, ids=relative)
def test_a_file_imports_only_what_its_folder_may(path):
    folder = folder_of(path)
    room = folder.split("/")[0]
    found = {folder_of(each) for each in files_of(path)} - {folder}
    mine = {each for each in found if each.split("/")[0] == room}
    assert mine <= FOLDERS[folder]
    assert {each.split("/")[0] for each in found - mine} <= ROOMS[room]


@pytest.mark.parametrize("path", ROOM_FILES, ids=relative)
def test_a_servers_package_is_imported_only_where_the_server_is(path):
    for package in packages_of(path) & OF_A_SERVER.keys():
        assert is_under(path, OF_A_SERVER[package]), package


@pytest.mark.parametrize("path", ROOM_FILES, ids=relative)
def test_what_serves_any_server_names_none(path):
    names = names_in(path) if is_under(path, OF_NO_SERVER) else set()
    if is_under(path, UNAWARE) and relative(path) != EMITTER:
        names.add(path.read_text(encoding="utf-8"))
    assert not [name for name in names if re.search("torch_?serve|triton", name, re.IGNORECASE)]


@pytest.mark.parametrize("path", ALL_FILES, ids=relative)
def test_no_file_imports_a_room_by_its_bare_name_or_relatively(path):
    # With the checkout as working directory, `import batching` gives a second copy of everything.
    bare = packages_of(path) | {""}
    assert not bare & {*ROOMS, "tests", "bench"}
    assert "." not in imports_of(path)


def test_every_pure_file_is_there_and_in_no_pure_folder():
    assert {relative(path) for path in PURE} >= set(PURE_FILES)
    assert not [path for path in PURE_FILES if is_under(ROOT / path, PURE_FOLDERS)]


@pytest.mark.parametrize("path", PURE, ids=relative)
def test_a_pure_file_touches_nothing_of_the_world_and_imports_only_pure_files_of_ours(path):
    assert not packages_of(path) & IMPURE
    assert {each for each in files_of(path) if each.name != "__init__.py"} <= set(PURE)


@pytest.mark.parametrize("folder", PURE_C)
def test_a_pure_folder_of_c_includes_nothing_of_the_world_and_only_its_own_headers(folder):
    sources = sorted((ROOT / folder).rglob("*.[ch]"))
    includes = {
        name
        for path in sources
        for name in re.findall(
            r"^\s*#\s*include\s*(.*?)\s*$", path.read_text("utf-8"), re.MULTILINE
        )
    }
    own = {f'"{path.name}"' for path in sources}
    assert own
    assert includes <= own | {f"<{name}>" for name in PURE_C[folder]}


RULES = (
    "files_over_300_lines",
    "functions_over_60_lines",
    "folders_over_15_files",
    "import_circles",
)


@pytest.mark.parametrize("rule", RULES)
def test_nothing_is_too_large_and_no_imports_go_in_circles(rule, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    house = importlib.import_module("house")
    tree = house.working_tree(ROOT)
    found = {each.name: each.size for each in house.offenders(tree) if each.rule == rule}
    assert not found.keys() - house.exceptions(tree), found


def test_every_folder_with_an_init_file_is_a_declared_package():
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg", encoding="utf-8")
    packages = set(declared["options"]["packages"].split())
    mapping = dict(
        line.split(" = ") for line in declared["options"]["package_dir"].strip().splitlines()
    )
    found = {
        path.parent.relative_to(ROOT).as_posix()
        for path in ROOM_FILES
        if path.name == "__init__.py"
    }
    assert packages == {"shunter." + folder.replace("/", ".") for folder in found}
    assert mapping == {"shunter." + folder.replace("/", "."): folder for folder in found}


def test_the_tests_are_no_package():
    assert not list((ROOT / "tests").rglob("__init__.py"))


EMITTED = {
    path: text
    for each in (emit, wire_emit, triton_emit, seat_emit)
    for path, text in each.emitted_files(ROOT).items()
}


@pytest.mark.parametrize("path", EMITTED, ids=relative)
def test_an_emitted_layout_file_is_fresh(path):
    assert path.read_text(encoding="utf-8") == EMITTED[path]
