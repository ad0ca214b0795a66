"""A client process of ``rpc_models.py``: asks whom it is told to, by the side's public client.

``python -m rpc.asking`` reads a line of JSON for every turn and writes one with what it found. Its
clients stay open. It imports no torch, so that eight of them are soon there.
"""

from __future__ import annotations

import http.client
import itertools
import json
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from shunter.nic_frontend.client import InferenceError, Session
from shunter.plugins.torchserve.grpc_client import InferenceClient

Array = np.ndarray[Any, np.dtype[Any]]
Ask = Callable[[Array], Array]
OPEN_S = 60
MOST_PASS = 10
"""So many times the seconds that were asked for does a whole pass last at most."""
TRITON = {"float32": "FP32", "int64": "INT64"}


def ours(url: str, model: str) -> Ask:
    """A session; the model's workers may still be loading."""
    deadline = time.monotonic() + OPEN_S
    while True:
        try:
            session = Session(url, model, timeout_s=30)
            break
        except InferenceError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    return lambda x: session.infer([x])[0]


def torchserve_http(address: str, model: str) -> Ask:
    """One connection that stays, raw bytes as the body."""
    connection = http.client.HTTPConnection(address)
    headers = {"Content-Type": "application/octet-stream"}

    def ask(x: Array) -> Array:
        connection.request("POST", f"/predictions/{model}", x.tobytes(), headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {body[:200]!r}")
        return np.frombuffer(body, np.float32)

    return ask


def torchserve_grpc(address: str, model: str) -> Ask:
    """Raw bytes in the request's map."""
    client = InferenceClient(address)
    return lambda x: np.frombuffer(client.predict(model, {"data": x.tobytes()}), np.float32)


def triton_grpc(packages: str, address: str, model: str) -> Ask:
    """Triton's own client, tensors in the messages."""
    if packages not in sys.path:
        sys.path.append(packages)
    import tritonclient.grpc

    client = tritonclient.grpc.InferenceServerClient(address)

    def ask(x: Array) -> Array:
        tensor = tritonclient.grpc.InferInput("x", [1, *x.shape], TRITON[x.dtype.name])
        tensor.set_data_from_numpy(x[None])
        return client.infer(model, [tensor]).as_numpy("y")[0]

    return ask


KINDS: dict[str, Callable[..., Ask]] = {
    "ours": ours,
    "torchserve http": torchserve_http,
    "torchserve grpc": torchserve_grpc,
    "triton grpc": triton_grpc,
}


@cache
def client(kind: str, *arguments: str) -> Ask:
    """Opened once."""
    return KINDS[kind](*arguments)


@cache
def requests(path: str) -> tuple[list[Array], Array]:
    """Inputs, and the answers that are right."""
    with np.load(path) as found:
        answers = found["answers"]
        return [found[f"x{place}"] for place in range(len(answers))], answers


def turn(
    target: list[str],
    data: str,
    *,
    first: int = 0,
    begin: float = 0.0,
    seconds: float = 0.0,
    whole: bool = False,
    most: int = 1_000_000,
) -> dict[str, Any]:
    """A closed loop over the inputs from ``first`` on, for ``seconds`` from ``begin``.

    ``whole``: it ends with a whole pass over the inputs, so that all sides get the same mixture;
    but on a host so slow that it takes long, it ends within one.
    ``most``: requests at most. All answers are compared.
    """
    (inputs, right), ask = requests(data), client(*target)
    latencies, answers = [], {}
    time.sleep(max(0.0, begin - time.monotonic()))
    begin, used = begin or time.monotonic(), time.process_time()
    for asked in itertools.count(1):
        place = (first + asked - 1) % len(inputs)
        sent = time.monotonic()
        answers[place] = ask(inputs[place])
        ended = time.monotonic()
        latencies.append(round((ended - sent) * 1e6, 1))
        lasted = ended - begin
        goes_on = whole and asked % len(inputs) and lasted < MOST_PASS * seconds
        over = lasted >= seconds and not goes_on
        if over or asked >= most:
            break
    used = time.process_time() - used
    wrong = max(float(abs(each - right[place]).max()) for place, each in answers.items())
    return {"latencies_us": latencies, "lasted_s": lasted, "difference": wrong, "cpu_s": used}


def main() -> None:
    """Until there are no more lines."""
    say = partial(print, flush=True)
    for line in sys.stdin:
        try:
            found = turn(**json.loads(line))
        except Exception as error:  # told, not raised: the others of this process go on
            found = {"error": f"{type(error).__name__}: {error}"}
        say(json.dumps(found))


if __name__ == "__main__":
    main()
