"""Which options of Triton a user may give."""

import pytest

from shunter.plugins.errors import UserError
from shunter.plugins.triton.serving.options import checked, launched

PORTS = 8000, 8001, 8002


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("http-port", "9000", "say --port"),
        ("--http-port", "9000", "say --port"),
        ("grpc-port", "9000", "say --grpc"),
        ("model-repository", "/models", "model-store=FOLDER"),
        ("model-control-mode", "poll", "shunter load"),
        ("repository-poll-secs", "3", "shunter load"),
        ("backend-directory", "/backends", "beside those of this Triton"),
        ("exit-on-error", "true", "must not end the others"),
        ("allow-http", "False", "http-address=127.0.0.1"),
        ("http-address", "10.0.0.7", "allowed: 127.0.0.1, 0.0.0.0"),
        ("http-restricted-api", "inference,model-repository:k=v", "has no key"),
        ("backend-config", "shunter,wait-s=1", "not for users"),
        ("metrics-port", "8002", "port 8002 is taken"),
    ],
)
def test_what_serve_decides_itself_is_refused_with_what_to_do(name, value, said):
    option = f"--config {name.removeprefix('--')}={value}: "
    with pytest.raises(UserError, match=f"^{option}") as refused:
        checked({name: value}, PORTS)
    assert said in str(refused.value)


def test_all_else_reaches_triton_as_it_is():
    given = {
        "allow-http": "true",
        "http-address": "0.0.0.0",
        "http-restricted-api": "inference:k=v",
        "backend-config": "python,shm-region-prefix-name=x",
        "metrics-port": "8003",
        "model-store": "/own",
        "load-model": "chain",
    }
    assert checked(given, PORTS) == given
    folders = {"model-repository": "/m"}
    ours = {**folders, "http-port": "8000", "grpc-port": "8001"}
    assert launched(given, PORTS, folders) == ours | given
