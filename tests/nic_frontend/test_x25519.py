"""X25519: the published numbers, by the C library and by the package."""

import pytest

from shunter.nic_frontend import x25519

# RFC 7748, sections 5.2 (the first) and 6.1.
SCALAR, POINT, PRODUCT, BOB, BOB_PUBLIC, ALICE_PUBLIC, SHARED = map(
    bytes.fromhex,
    (
        "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
        "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
    ),
)


@pytest.fixture(params=["c", "package"], autouse=True)
def way(request, built, monkeypatch):
    x25519._native.cache_clear()
    if request.param == "package":
        pytest.importorskip("cryptography")
        monkeypatch.setattr(x25519, "library", lambda: None)
    elif x25519._native() is None:
        pytest.skip("there is no libcrypto")
    yield
    x25519._native.cache_clear()


def test_the_published_numbers():
    assert x25519.shared_secret(SCALAR, POINT) == PRODUCT
    assert x25519.public_key(BOB) == BOB_PUBLIC
    assert x25519.shared_secret(BOB, ALICE_PUBLIC) == SHARED


def test_a_key_that_makes_no_secret_is_refused():
    with pytest.raises(ValueError):
        x25519.shared_secret(BOB, bytes(32))


def test_every_private_key_is_another():
    assert len({x25519.private_key() for _ in range(100)}) == 100
