"""The asyncio client against a real front end and a real worker."""

import asyncio

import numpy as np
import pytest

from shunter.nic_frontend.client import (
    AsyncClient,
    AuthenticationError,
    BadRequestError,
    ServerError,
    TooLateError,
    UnreachableError,
)

KEY = bytes(range(32))
SCHEMES = ["udp", "tcp", "unix"]
LONG = 30


def x(*values):
    return np.array(values, np.float32)


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return request.param


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
def test_concurrent_calls_share_a_session(make_service, double, scheme, key):
    service = make_service(key=key)
    service.serve("double", **double)

    async def main():
        async with AsyncClient(service.url(scheme), key=key, timeout_s=LONG) as client:
            asked = [client.infer("double", x(i, 0, 0)) for i in range(500)]
            assert [each[0] for each in await asyncio.gather(*asked)] == list(range(0, 1000, 2))
            assert await client.model("double") is await client.model("double")
            assert service.front_end.path.sessions() == 1

    asyncio.run(main())


def test_large_tensors(make_service, scheme):
    service = make_service()
    shape = [("float32", (400, 1000))]

    def infer(inputs, outputs):
        outputs[0].copy_(inputs[0] + 1)

    service.serve("large", shape, shape, infer)

    async def main():
        async with AsyncClient(service.url(scheme), timeout_s=LONG) as client:
            arrays = [np.full((400, 1000), i, np.float32) for i in range(20)]
            answers = await asyncio.gather(*(client.infer("large", each) for each in arrays))
            assert all((a == i + 1).all() for i, a in enumerate(answers))

    asyncio.run(main())


def test_calls_begin_in_the_order_in_which_they_came(gated, scheme):
    async def main():
        async with AsyncClient(gated.url(scheme), timeout_s=LONG, window=2) as client:
            await client.model("gated")
            tasks = [asyncio.create_task(client.infer("gated", x(i, 0, 0))) for i in range(20)]
            gated.gate.set()
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert gated.ran == list(range(20))


def test_a_cancelled_call_is_taken_back(gated, scheme):
    async def main():
        loop = asyncio.get_running_loop()
        async with AsyncClient(gated.url(scheme), timeout_s=LONG) as client:
            await client.model("gated")
            tasks = [asyncio.create_task(client.infer("gated", x(i, 0, 0))) for i in range(6)]
            await loop.run_in_executor(None, gated.begun.wait)
            for task in tasks[2:]:
                task.cancel()
            cancelled = await asyncio.gather(*tasks[2:], return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in cancelled)
            # Behind the cancellations on the same session, so they have arrived when it has.
            last = asyncio.create_task(client.infer("gated", x(9, 0, 0)))
            stats = gated.front_end.path.stats
            await loop.run_in_executor(None, gated.until, lambda: stats()["requests"] == 7)
            gated.gate.set()
            assert (await last)[0] == 9
            assert [each[0] for each in await asyncio.gather(*tasks[:2])] == [0, 1]

    asyncio.run(main())
    assert gated.ran == [0, 1, 9]


def test_each_fault_has_its_exception(gated, scheme):
    async def main():
        async with AsyncClient(gated.url(scheme), timeout_s=LONG) as client:
            for model, array in (("none", x(1, 2, 3)), ("gated", x(1))):
                for _ in range(2):
                    with pytest.raises(BadRequestError):
                        await client.infer(model, array)
            with pytest.raises(TooLateError):
                await client.infer("gated", x(1, 2, 3), timeout_s=0.5)
            gated.gate.set()
            assert (await client.infer("gated", x(4, 5, 6))).tolist() == [4, 5, 6]
        async with AsyncClient(gated.url(scheme), key=KEY, timeout_s=LONG) as client:
            with pytest.raises(AuthenticationError):
                await client.infer("gated", x(1, 2, 3))

    asyncio.run(main())


@pytest.mark.parametrize("url", ["udp://127.0.0.1:9", "tcp://localhost:9", "unix:///none.sock"])
def test_where_nobody_is_nothing_is_reached(url):
    async def main():
        async with AsyncClient(url, timeout_s=0.2) as client:
            with pytest.raises(UnreachableError, match=r"refused|No such file"):
                await client.infer("double", x(1, 2, 3))

    asyncio.run(main())


def test_a_restart_of_the_front_end(gated, scheme):
    def restart(session):
        assert gated.begun.wait(60)
        gated.until(lambda: len(session._exchange.running) == 8)
        gated.stop()
        gated.gate.set()
        gated.start()
        gated.wait_for("gated")

    async def main():
        async with AsyncClient(gated.url(scheme), timeout_s=LONG) as client:
            session = await client.model("gated")
            thread = asyncio.get_running_loop().run_in_executor(None, restart, session)
            again = [client.infer("gated", x(i, 0, 0), idempotent=True) for i in range(4)]
            once = [client.infer("gated", x(i, 0, 0)) for i in range(4, 8)]
            found = await asyncio.gather(*again, *once, return_exceptions=True)
            await thread
            assert [each[0] for each in found[:4]] == [0, 1, 2, 3]
            assert all(isinstance(each, ServerError) for each in found[4:])
            assert (await client.infer("gated", x(9, 0, 0)))[0] == 9

    asyncio.run(main())


def test_closing_ends_calls_that_have_no_answer(gated, scheme):
    async def main():
        client = AsyncClient(gated.url(scheme), timeout_s=LONG)
        await client.model("gated")
        call = asyncio.create_task(client.infer("gated", x(1, 2, 3)))
        await asyncio.get_running_loop().run_in_executor(None, gated.begun.wait)
        await client.close()
        with pytest.raises(UnreachableError, match="closed"):
            await call

    asyncio.run(main())


def test_another_event_loop(gated):
    uvloop = pytest.importorskip("uvloop")
    gated.gate.set()

    async def main():
        async with AsyncClient(gated.url(), timeout_s=LONG) as client:
            return await asyncio.gather(*(client.infer("gated", x(i, 0, 0)) for i in range(100)))

    found = uvloop.run(main())
    assert [each[0] for each in found] == list(range(100))


def test_a_name_that_fits_in_no_hello_is_the_callers_fault_at_once(make_service, double):
    service = make_service()
    service.serve("double", **double)

    async def ask():
        async with AsyncClient(service.url()) as client:
            with pytest.raises(BadRequestError, match="more than 128 bytes"):
                await client.infer("m" * 129, np.ones(3, np.float32))

    asyncio.run(ask())
