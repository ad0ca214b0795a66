"""A worker whose model is on a GPU: one batch on its way against two, eager against CUDA graphs.

The worker is the one that serves the network front end; what gives it batches writes the queue's
words in this process, so nothing of a network is measured. Requests wait always: another batch is
given as soon as the worker may hold it. What is counted is requests whose results are where they
would be sent from.

Sides take turns in rounds; ratios are medians over rounds. Needs an NVIDIA GPU and cuda-python;
where they are missing it says so, and that is no failure.

Examples:
    python bench/gpu_queue.py            # into results/GPU/gpu_queue.json
    python bench/gpu_queue.py --quick
    python bench/gpu_queue.py --rounds 5 --seconds 0.3
"""

from __future__ import annotations

import itertools
import json
import math
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from common import Parser, Progress, Row, paired_ratio, write_result
from gpu_entry import folder_of, missing
from rpc.models import networks

from shunter.batching.queue.landing import LandingPool
from shunter.batching.queue.layout import AHEAD, PIECE
from shunter.batching.queue.native import WorkerQueue
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.queue.device_model import DeviceModel, device_model
from shunter.handlers.queue.device_queue import DeviceQueueWorker
from shunter.model_store.resnet50.archive import random_model
from shunter.nic_frontend.library import require

NAME = "gpu_queue"
MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "lenet": networks.LeNet,
    "minilm": networks.MiniLm,
    "resnet50": random_model,
}
BATCHES = (1, 8, 32)
SIDES = {
    f"{kind}_{ahead}": (kind, ahead) for kind in ("eager", "graph") for ahead in range(1, AHEAD + 1)
}
RATIOS = {
    "two_vs_one_eager": ("eager_2", "eager_1"),
    "two_vs_one_graph": ("graph_2", "graph_1"),
    "graph_vs_eager_one": ("graph_1", "eager_1"),
    "graph_vs_eager_two": ("graph_2", "eager_2"),
}
SECONDS, QUICK_SECONDS = 1.0, 0.2
WARM_UP = 10
SETS = AHEAD + 1
"""Batches of entries that take turns."""
Make = Callable[..., DeviceModel | None]


@dataclass
class Front:
    """What a front end does for a worker, without a network."""

    end: WorkerQueue
    batch: int
    inputs: torch.Tensor
    """One row for each entry, as it landed."""
    given: int = 0

    def give(self, worker: DeviceQueueWorker) -> None:
        """Another batch; its worker holds fewer than it may."""
        queue, words = self.end.queue, self.end.queue.words
        self.given += 1
        place = self.given % AHEAD
        words[queue.worker(0, "batch_first") + place] = self.given % SETS * self.batch
        words[queue.worker(0, "batch_count") + place] = self.batch
        words[queue.worker(0, "batch_number")] = self.given
        found = self.end.wait((), 0, 0)
        assert found is not None
        worker.begin(found)

    def take(self, worker: DeviceQueueWorker) -> None:
        """Wait for the oldest batch and answer it."""
        while (found := worker.finished()) is None:
            pass
        assert set(found[1]) == {200}, "the handler failed"
        self.end.answer(*found)


@contextmanager
def front_of(specs: tuple[TensorSpec, TensorSpec], batch: int) -> Iterator[Front]:
    """A queue whose requests have come."""
    one, other = specs
    count = SETS * batch
    with ExitStack() as stack:
        queue = stack.enter_context(TensorQueue.create(1, [one], [other], count, 1))
        pool = stack.enter_context(LandingPool(count * one.bytes, lambda: math.inf))
        pool.grow(pool.most)
        bells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
        for bell in bells:
            stack.callback(os.close, bell)
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        where = {"doorbell": bells[0], "front": bells[1], "socket": udp.fileno()}
        end = WorkerQueue(require(), queue, 1, 0, pool.mapping, **where)
        stack.callback(end.close)
        for entry in range(count):
            PIECE.pack_into(
                queue.pieces.bytes, entry * PIECE.size, entry * one.bytes, one.bytes, 0
            )
            queue.words[queue.entry(entry, "entry_pieces")] = 1
            queue.words[queue.entry(entry, "entry_next")] = entry + 1
        memory = np.frombuffer(pool.mapping.bytes, np.uint8)[: count * one.bytes]
        rows = torch.from_numpy(memory.view(one.dtype).reshape(count, *one.shape))
        rows.copy_(torch.rand(rows.shape) if rows.is_floating_point() else torch.ones(rows.shape))
        yield Front(end, batch, rows)


def rate(front: Front, worker: DeviceQueueWorker, ahead: int, seconds: float) -> float:
    """Requests per second with so many batches on their way."""
    for _ in range(ahead):
        front.give(worker)
    begin, batches = time.perf_counter(), 0
    while (took := time.perf_counter() - begin) < seconds or batches < WARM_UP:
        front.take(worker)
        front.give(worker)
        batches += 1
    for _ in range(ahead):
        front.take(worker)
    return batches * front.batch / took


def check(front: Front, network: torch.nn.Module, device: torch.device) -> None:
    """Results of all that was answered are those of the network."""
    [found] = front.end.queue.results()
    with torch.inference_mode():
        expected = network(front.inputs.to(device)).cpu()
    results = torch.from_numpy(found[: len(expected)])
    assert torch.allclose(results, expected, rtol=0.02, atol=0.02), "wrong results"


def measure(
    name: str, batch: int, rounds: int, seconds: float, device: torch.device, make: Make
) -> Row:
    """Requests per second, by side and round."""
    (kind, shape), (out_kind, out_shape) = networks.SHAPES[name]
    specs = TensorSpec("in", kind, shape), TensorSpec("out", out_kind, out_shape)
    network = MODELS[name]().eval().to(device)
    rates: dict[str, list[float]] = {side: [] for side in SIDES}

    def infer(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        outputs[0].copy_(network(inputs[0]))

    with ExitStack() as stack, torch.inference_mode():
        fronts = {}
        for way in ("eager", "graph"):
            front = stack.enter_context(front_of(specs, batch))
            model = make(
                infer, [network], ([specs[0]], [specs[1]]), batch, device, graphs=way == "graph"
            )
            assert model is not None, "there is no memory on the device"
            stack.callback(model.close)
            if way == "graph" and not model.is_captured:
                raise RuntimeError(f"{name} is not captured")
            worker = DeviceQueueWorker(front.end, model)
            stack.callback(worker.close)
            fronts[way] = front, worker
            rate(front, worker, AHEAD, seconds / 4)
            check(front, network, device)
        for _, (side, (way, ahead)) in itertools.product(range(rounds), SIDES.items()):
            rates[side].append(rate(*fronts[way], ahead, seconds))
        for front, _ in fronts.values():
            check(front, network, device)
    return {"model": name, "batch": batch, "requests_per_s": rates}


def summarise(samples: list[Row]) -> tuple[list[Row], Row]:
    """A row for each model and batch, and the headline."""
    rows: list[Row] = []
    for cell in samples:
        rates = cell["requests_per_s"]
        row: Row = {"model": cell["model"], "batch": cell["batch"]}
        row["requests_per_s"] = {side: statistics.median(rates[side]) for side in SIDES}
        for label, (ours, theirs) in RATIOS.items():
            row[label] = paired_ratio(rates[ours], rates[theirs])
        rows.append(row)
    headline: Row = {}
    for label in RATIOS:
        medians = [row[label]["median"] for row in rows]
        headline[f"{label}_worst"] = min(medians, default=None)
        headline[f"{label}_best"] = max(medians, default=None)
    return rows, headline


def main() -> None:
    """Measure every model and batch."""
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=float, help="of a cell; default 1, quick 0.2")
    args = parser.arguments()
    if reason := missing():
        print(f"{NAME}: nothing is measured: {reason}", file=sys.stderr)
        return
    device = torch.device("cuda", torch.cuda.current_device())
    gpu = torch.cuda.get_device_name(device)
    cells = list(itertools.product(MODELS, BATCHES))
    progress = Progress(len(cells))
    samples = []
    for name, batch in cells:
        progress.step(f"{name}, batch {batch}")
        seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
        samples.append(measure(name, batch, args.rounds, seconds, device, device_model))
    rows, headline = summarise(samples)
    rows = [{"gpu": gpu, **row} for row in rows]
    path = write_result(
        f"{folder_of(gpu)}/{NAME}", quick=args.quick, rows=rows, headline=headline, samples=samples
    )
    for row in rows:
        found = ", ".join(f"{side} {number:.0f}" for side, number in row["requests_per_s"].items())
        print(f"{row['model']}, batch {row['batch']}: requests/s: {found}")
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
