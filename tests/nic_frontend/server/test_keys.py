"""Who may open which sessions: whole front ends, clients with keys, and who has none."""

import base64
import secrets
import socket
from types import SimpleNamespace

import numpy as np
import pytest

from shunter.nic_frontend.client import AuthenticationError, Client, Session
from shunter.nic_frontend.client.requests.errors import TooLargeError
from shunter.nic_frontend.wire.hello import Hello, parse_cookie
from shunter.nic_frontend.wire.layout import Flags, WireStatus

A, B = (bytes([n]) * 32 for n in (1, 2))
ONE = np.ones(3, np.float32)
LONG = 60


def key(name, secret, **more):
    rest = "".join(f"\n{field} = {value}" for field, value in more.items())
    return f'[[key]]\nid = "{name}"\nsecret = "{base64.b64encode(secret).decode()}"{rest}\n'


@pytest.fixture
def keys(tmp_path):
    """Write the file of keys; its path."""

    def write(*texts):
        path = tmp_path / "next"
        path.write_text("".join(texts))
        path.chmod(0o600)
        return path.rename(tmp_path / "keys.toml")

    return write


def sessions(service):
    return service.front_end.path.sessions()


def ask(session):
    assert (session.infer([ONE])[0] == 2).all()


@pytest.mark.parametrize("scheme", ["udp", "tcp", "unix"])
@pytest.mark.parametrize("encrypt", [False, True])
def test_several_keys_are_good_at_once_and_each_has_its_rights(
    make_service, double, keys, scheme, encrypt
):
    if encrypt:
        pytest.importorskip("cryptography")
    path = keys(
        key("a", A, models='["dou*"]', classes='["best_effort"]'), key("b", B, models='["other"]')
    )
    service = make_service(keys_file=path)
    for model in ("double", "other"):
        service.serve(model, **double)
    how = {"encrypt": encrypt, "timeout_s": LONG}
    url = service.url(scheme)
    with Session(url, "double", key=A, key_id="a", **how) as session:
        ask(session)
        assert not session.may_be_strict
    with Session(url, "other", key=B, key_id="b", **how) as session:
        ask(session)
        assert session.may_be_strict
    service.until(lambda: sessions(service) == 0)
    for name, secret, model, why in (
        ("a", A, "other", "not for this: this model"),
        ("b", B, "double", "not for this: this model"),
        ("b", B, "nobody", "not for this: this model"),
        ("a", B, "double", "does not accept the key"),
        ("c", A, "double", "does not accept the key"),
        ("default", A, "double", "does not accept the key"),
        ("a", None, "double", "does not accept the key"),
    ):
        if secret is None and encrypt:
            continue
        with pytest.raises(AuthenticationError, match=why):
            Session(url, model, key=secret, key_id=name, **how)
        assert sessions(service) == 0


def test_a_server_without_keys_does_not_take_one(make_service, double):
    service = make_service()
    service.serve("double", **double)
    with pytest.raises(AuthenticationError, match="the server has no keys"):
        Session(service.url(), "double", key=A, timeout_s=LONG)
    assert sessions(service) == 0


@pytest.mark.parametrize(
    ("strict", "with_key", "without"),
    [("all", True, True), ("keyed", True, False), ("none", False, False)],
)
def test_whose_requests_may_be_strict(make_service, double, strict, with_key, without):
    service = make_service(strict=strict)
    service.serve("double", **double)
    with Session(service.url(), "double", timeout_s=LONG) as session:
        assert session.may_be_strict is without
        ask(session)
    service.stop()
    service._settings["key"] = A
    service.start()
    service.wait_for("double")
    with Session(service.url(), "double", key=A, timeout_s=LONG) as session:
        assert session.may_be_strict is with_key


@pytest.mark.parametrize("scheme", ["udp", "tcp"])
def test_keys_change_while_they_are_in_use(make_service, double, keys, scheme):
    service = make_service(keys_file=keys(key("a", A), key("b", B)))
    service.serve("double", **double)
    opened = [
        Session(service.url(scheme), "double", key=secret, key_id=name, timeout_s=LONG)
        for name, secret in (("a", A), ("b", B))
    ]
    one, other = opened
    ask(one)
    ask(other)
    mine = other._exchange.core.session
    keys(key("b", B), key("c", A))
    service.until(lambda: sessions(service) == 1)
    ask(other)
    assert other._exchange.core.session == mine
    with pytest.raises(AuthenticationError, match="does not accept"):
        one.infer([ONE], idempotent=True)
    with Session(service.url(scheme), "double", key=A, key_id="c", timeout_s=LONG) as third:
        ask(third)
    for each in opened:
        each.close()


def test_a_secret_that_changes_is_read_when_somebody_says_so(make_service, double, keys, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(A)
    secret.chmod(0o600)
    service = make_service(keys_file=keys('[[key]]\nid = "a"\nsecret_file = "secret"'))
    service.serve("double", **double)
    with Session(service.url(), "double", key=A, key_id="a", timeout_s=LONG) as session:
        ask(session)
        secret.write_bytes(B)
        service.front_end.read_keys()
        service.until(lambda: sessions(service) == 0)
    with Session(service.url(), "double", key=B, key_id="a", timeout_s=LONG) as session:
        ask(session)


def raw(nic, service, kind, secret=None):
    return nic.Raw(SimpleNamespace(port=service.front_end.port, key=secret), kind)


@pytest.mark.parametrize("at", [64 + 32, 64 + 104, 64 + 232, 64 + 38, 8, -1], ids=str)
@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_a_hello_that_was_changed_on_its_way_opens_nothing(make_service, double, nic, kind, at):
    service = make_service(key=A)
    service.serve("double", **double)
    with raw(nic, service, kind, A) as client:
        nonce = client.hello(model="double")
        cookie = parse_cookie(client.get()[1], nonce)
        hello = Hello(nonce, "double", "", 256, 64, cookie, key_id="default")
        said = bytearray(hello.message(A))
        said[at] ^= 0x10
        client.put(bytes(said))
        header, payload = client.get()
        assert (header.status, header.session) == (WireStatus.UNAUTHORIZED, 0)
        assert payload == nonce and sessions(service) == 0


def test_a_hello_that_somebody_has_heard_opens_no_other_stream(make_service, double, nic):
    service = make_service(key=A)
    service.serve("double", **double)
    with raw(nic, service, "tcp", A) as client:
        client.open(model="double")
        heard = client.said
    service.until(lambda: sessions(service) == 0)
    with raw(nic, service, "tcp") as thief:
        for _ in range(2):
            thief.put(heard)
        assert thief.get()[0].status == WireStatus.COOKIE
        with pytest.raises((EOFError, ConnectionError)):
            thief.get()
    assert sessions(service) == 0


def test_a_public_key_that_makes_no_secret_is_refused(make_service, double, nic):
    service = make_service(key=A)
    service.serve("double", **double)
    with raw(nic, service, "tcp", A) as client:
        for _ in range(2):
            want = {"want": int(Flags.PAYLOAD_AEAD), "public": bytes(32)}
            cookie = getattr(client, "cookie", bytes(16))
            nonce = client.hello(model="double", cookie=cookie, nonce=bytes(16), **want)
            header, payload = client.get()
            if header.status == WireStatus.COOKIE:
                client.cookie = parse_cookie(payload, nonce)
        assert header.status == WireStatus.BAD_REQUEST and sessions(service) == 0


def test_what_is_too_large_for_datagrams_goes_by_a_stream(make_service, monkeypatch):
    from shunter.nic_frontend.client import session as clients

    monkeypatch.setattr(
        clients,
        "segment_of",
        lambda connection: 256 if connection.type == socket.SOCK_DGRAM else 61_440,
    )
    service = make_service()
    large = [("uint8", (1 << 20,))]

    def same(inputs, outputs):
        outputs[0].copy_(inputs[0])

    service.serve("large", large, large, same)
    content = np.frombuffer(secrets.token_bytes(1 << 20), np.uint8)
    with pytest.raises(TooLargeError, match="tcp://"):
        Session(service.url(), "large", timeout_s=LONG)
    with Client(service.url("shunter"), timeout_s=LONG) as client:
        assert (client.infer("large", content) == content).all()
