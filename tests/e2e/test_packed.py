"""Requests of any size through a server's own workers: tensors, byte strings, and batches."""

import asyncio
import contextlib
import json
import shutil

import numpy as np
import pytest
import yaml

from shunter.model_store.minilm import archive
from shunter.nic_frontend.client import (
    AsyncClient,
    BadRequestError,
    InferenceError,
    Session,
    TooSlowError,
)

pytestmark = pytest.mark.e2e

MISSING = archive.weights_missing()
LENGTHS = [5, 1, 256, 30, 31, 32, 33, 2, 100, 7]


@pytest.fixture
def client(wait_until, site):
    """Opens a session with a model as soon as there is a worker for it."""
    with contextlib.ExitStack() as stack:

        def opened(name):
            port = site.status()["front_end"]["port"]
            try:
                return Session(f"udp://127.0.0.1:{port}", name, timeout_s=20) if port else None
            except InferenceError:
                return None

        yield lambda name: stack.enter_context(wait_until("a session", lambda: opened(name)))


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_texts_of_any_length_are_embedded_in_batches_as_one_by_one(site, client, tmp_path):
    config = yaml.safe_load((archive.HERE / "model-config.yaml").read_text())["shunter"]
    del config["slo_ms"]  # nothing is late, however busy the machine is
    config = {"shunter": {**config, "network": "1x1x8", "configuration": "1x1x8"}}
    made = archive.pack_minilm(tmp_path, name="embed", config=config)
    shutil.copy(made, site.archives.folder)
    answer = site.register("embed", made.name)
    assert answer.status == 200, answer
    session = client("embed")
    rng = np.random.default_rng(0)
    texts = [rng.integers(1000, 30000, n) for n in LENGTHS]
    alone = [session.infer([ids])[0] for ids in texts]
    assert all(abs(float(each @ each) - 1) < 1e-4 for each in alone)
    together = session.infer_many([[ids] for ids in texts])
    for [found], wanted in zip(together, alone, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    bad = [[], rng.integers(1000, 30000, 257), [30522], [-1]]
    mixed = session.infer_many([[np.array(ids, np.int64)] for ids in [*bad, texts[0]]])
    assert all(isinstance(each, BadRequestError) for each in mixed[:-1])
    np.testing.assert_allclose(mixed[-1][0], alone[0], atol=1e-5)
    site.management("DELETE", "/models/embed")


def test_bytes_come_and_json_goes(serve, client):
    tensors = {
        "inputs": [{"name": "text", "dtype": "bytes", "shape": []}],
        "outputs": [{"name": "json", "dtype": "bytes", "shape": []}],
        "request_bytes": 100_000,
        "answer_bytes": 1000,
    }
    config = {"shunter": {"tensors": tensors, "network": "1x1x8"}}
    model = serve(handler="letters", config=config)
    session = client(model.name)
    texts = ["", "übel", "aab", "z" * 99_000]
    found = session.infer_many([[np.array(text.encode(), object)] for text in texts])
    assert [json.loads(each[0].item()) for each in found] == [
        {}, {"ü": 1, "b": 1, "e": 1, "l": 1}, {"a": 2, "b": 1}, {"z": 99_000},
    ]  # fmt: skip
    with pytest.raises(BadRequestError):
        session.infer([np.array(b"\xff", object)])
    with pytest.raises(InferenceError, match="handler failed"):  # its answer would be too long
        session.infer([np.array("".join(map(chr, range(200, 400))).encode(), object)])


def test_a_request_may_be_a_batch(serve, client):
    tensors = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": [-1]}],
        "outputs": [
            {"name": "sum", "dtype": "float32", "shape": []},
            {"name": "together", "dtype": "int64", "shape": []},
        ],
        "batched": True,
    }
    config = {"shunter": {"tensors": tensors, "network": "1x1x8"}}
    session = client(serve(handler="rowwise", config=config).name)
    requests = [np.full((n, 1 + n % 3), n, np.float32) for n in (1, 8, 3, 2, 5, 1, 7)]
    for x, (sums, together) in zip(
        requests, session.infer_many([[x] for x in requests]), strict=True
    ):
        assert sums.tolist() == x.sum(1).tolist()
        assert all(len(x) <= n <= 8 for n in together)
    with pytest.raises(BadRequestError, match="9 rows; the model takes 8"):
        session.infer([np.zeros((9, 1), np.float32)])


def test_who_does_not_read_parts_does_not_hold_up_its_batch(serve, client, wait_until):
    tensors = {
        "inputs": [{"name": "parts", "dtype": "int64", "shape": []}],
        "outputs": [{"name": "together", "dtype": "int64", "shape": []}],
        "streamed": True,
        "backlog_bytes": 4096,
        "backlog_ms": 2500,
        "stall_ms": 3000,
    }
    config = {"shunter": {"tensors": tensors, "network": "1x1x8"}}
    model = serve(handler="batchmates", config=config)
    name = model.name
    url = client(name).url

    def waits():
        return (model.state()["network"] or {}).get("queued") == 8

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            first, *others = [
                await stack.enter_async_context(AsyncClient(url, timeout_s=20)) for _ in range(8)
            ]
            gate, slow = (first.stream(name, np.array(10**9)) for _ in range(2))
            await anext(gate)  # the worker waits for who reads it
            begun = asyncio.create_task(anext(slow))
            asked = [asyncio.create_task(whole(each, name, 200)) for each in others]
            # Else some are not in the batch of the slow one.
            await asyncio.to_thread(wait_until, "all wait", waits)
            await gate.aclose()
            found = await asyncio.gather(*asked)
            assert [len(each) for each in found] == [200] * 7
            assert await begun > 1
            with pytest.raises(TooSlowError):
                async for _ in slow:
                    pass
            assert len(await whole(first, name, 3)) == 3
            alone = first.stream(name, np.array(10**9))
            await anext(alone)  # no other is in its batch, but others wait for the worker
            assert len(await whole(others[0], name, 3)) == 3
            with pytest.raises(TooSlowError):
                async for _ in alone:
                    pass

    asyncio.run(main())


async def whole(client, name, parts):
    return [part async for part in client.stream(name, np.array(parts))]
