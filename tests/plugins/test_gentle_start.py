"""How a worker starts beside others: what its command begins with."""

import os
import subprocess
import sys

import pytest

from shunter.handlers.placement.gentle import can_return_from_idle
from shunter.plugins import gentle_start

needs_privilege = pytest.mark.skipif(
    not can_return_from_idle() or os.getpriority(os.PRIO_PROCESS, 0) != 0,
    reason="needs CAP_SYS_NICE or a nice limit of 20, and the usual share",
)


@needs_privilege
def test_who_comes_beside_others_begins_with_a_small_share_and_is_told():
    environ = {"SHUNTER_GENTLE": "1"}
    command = [*gentle_start.starter(environ), sys.executable, "-c"]
    assert environ == {"SHUNTER_GENTLE": "early"}
    code = "import os; print(os.getpriority(os.PRIO_PROCESS, 0), os.getpid())"
    with subprocess.Popen([*command, code], stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=60)[0] == f"10 {process.pid}\n"


@needs_privilege
def test_a_server_in_another_language_is_told_an_argument_per_line(capsys):
    gentle_start.main()
    program, *rest = capsys.readouterr().out.splitlines()
    assert os.access(program, os.X_OK) and rest == ["-n", "10"]


@pytest.mark.parametrize(
    "environ",
    [{}, {"SHUNTER_GENTLE": ""}, {"SHUNTER_GENTLE": "1", "SHUNTER_POOL": "0"}],
    ids=["nothing said", "said no", "seat of a pool process"],
)
def test_others_start_as_ever(environ):
    before = dict(environ)
    assert gentle_start.starter(environ) == []
    assert environ == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("can_return_from_idle", lambda: False),
        ("os.getpriority", lambda which, who: 5),
        ("shutil.which", lambda name: None),
    ],
    ids=["it could not come back", "an operator chose", "there is no such program"],
)
def test_where_it_cannot_be_or_is_not_wanted_they_start_as_ever(monkeypatch, capsys, name, value):
    monkeypatch.setattr(f"{gentle_start.__name__}.{name}", value)
    environ = {"SHUNTER_GENTLE": "1"}
    assert gentle_start.starter(environ) == []
    assert environ == {"SHUNTER_GENTLE": "1"}
    gentle_start.main()
    assert capsys.readouterr().out.split() == []
