"""From where a payload landed to a tensor on a GPU, by three ways, per size and batch.

``gathered``: what a worker does, by C from the landing pool into pinned memory, and from there by
DMA to an address that is the same for every batch.
``pageable``: a tensor over the pool, and ``.to(device)``, as handlers do it.
``staged``: torch's copy into a pinned buffer and DMA from there, as data loaders do it.

The payload is written before each sample, as the network would leave it, in the processor's
cache. A sample ends when the caller knows that the payload is there. Sides take turns in rounds;
ratios are medians over rounds. Needs an NVIDIA GPU and cuda-python; where they are missing it
says so, and that is no failure.

Examples:
    python bench/gpu_entry.py            # into results/GPU/gpu_entry.json
    python bench/gpu_entry.py --quick
"""

from __future__ import annotations

import json
import math
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import addressof, c_void_p

import numpy as np
import torch
from common import Parser, Progress, Row, paired_ratio, percentile, write_result

from shunter.batching.queue.landing import LandingPool
from shunter.batching.queue.layout import PIECE
from shunter.batching.queue.native import Batch, WorkerQueue
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.device.driver import Driver, cuda_driver
from shunter.handlers.device.memory import allocate, cuda_view, pin
from shunter.nic_frontend.library import require

NAME = "gpu_entry"
SIZES = {784: 1024, 6144: 1024, 602_112: 512}
"""Bytes of a request, and how many lie in the pool."""
BATCHES = (1, 8)
SIDES = ("gathered", "pageable", "staged")
SAMPLES, QUICK_SAMPLES = 500, 100
WARM_UP = 20
Copy = Callable[[int], torch.Tensor]
"""Bring a batch to the device; it is there when this returns. Takes its first entry."""


@contextmanager
def landed(size: int) -> Iterator[tuple[WorkerQueue, Batch, torch.Tensor]]:
    """A worker's end of a queue, its requests of ``size`` bytes, and where these landed."""
    count = SIZES[size]
    specs = [TensorSpec("payload", "uint8", (size,))], [TensorSpec("answer", "uint8", (4096,))]
    with ExitStack() as stack:
        queue = stack.enter_context(TensorQueue.create(1, *specs, count, 1))
        pool = stack.enter_context(LandingPool(count * size, lambda: math.inf))
        pool.grow(pool.most)
        bells = [os.eventfd(0), os.eventfd(0)]
        for bell in bells:
            stack.callback(os.close, bell)
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        where = {"doorbell": bells[0], "front": bells[1], "socket": udp.fileno()}
        end = WorkerQueue(require(), queue, 1, 0, pool.mapping, **where)
        stack.callback(end.close)
        every = Batch(count)
        for entry in range(count):
            PIECE.pack_into(queue.pieces.bytes, entry * PIECE.size, entry * size, size, 0)
            queue.words[queue.entry(entry, "entry_pieces")] = 1
            every.entries[entry] = entry
        rows = np.frombuffer(pool.mapping.bytes, np.uint8)[: count * size]
        yield end, every, torch.from_numpy(rows.reshape(count, size))


def gathered(
    driver: Driver, end: WorkerQueue, every: Batch, batch: int, device: torch.device
) -> Copy:
    """As a worker does it."""
    size = end.queue.inputs[0].bytes
    rows = torch.empty((batch, size), dtype=torch.uint8)
    pin(driver, rows.data_ptr(), rows.nbytes)
    there = allocate(driver, rows.nbytes)
    view = cuda_view(there, (batch, size), "uint8", device)
    stream, event = driver.stream(), driver.event()
    into = (c_void_p * 1)(rows.data_ptr())

    def copy(first: int) -> torch.Tensor:
        end.gather(every, first, batch, addressof(into))
        driver.call("cuMemcpyHtoDAsync", there, rows.data_ptr(), rows.nbytes, stream)
        driver.call("cuEventRecord", event, stream)
        while not driver.is_done(event):
            pass
        return view

    return copy


def pageable(host: torch.Tensor, batch: int, device: torch.device) -> Copy:
    """As handlers do it."""
    return lambda first: host[first : first + batch].to(device)


def staged(host: torch.Tensor, batch: int, device: torch.device) -> Copy:
    """By way of a pinned buffer."""
    buffer = torch.empty((batch, host.shape[1]), dtype=host.dtype, pin_memory=True)
    there = torch.empty_like(buffer, device=device)
    event = torch.cuda.Event()

    def copy(first: int) -> torch.Tensor:
        buffer.copy_(host[first : first + batch])
        there.copy_(buffer, non_blocking=True)
        event.record()
        while not event.query():
            pass
        return there

    return copy


def sample(copy: Copy, host: torch.Tensor, batch: int, number: int) -> float:
    """Microseconds that one batch took."""
    first = number * batch % (len(host) // 2)  # a batch never passes the end
    rows = host[first : first + batch]
    rows.fill_(number % 251)
    begin = time.perf_counter_ns()
    found = copy(first)
    took = (time.perf_counter_ns() - begin) / 1000
    if number < WARM_UP:
        assert torch.equal(found.cpu(), rows), "the payload did not arrive"
    return took


def measure(size: int, batch: int, rounds: int, samples: int, device: torch.device) -> Row:
    """Microseconds of every sample, by side and round."""
    took: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    with landed(size) as (end, every, host):
        driver = Driver(cuda_driver(), device.index)
        with driver.made:
            sides = {
                "gathered": gathered(driver, end, every, batch, device),
                "pageable": pageable(host, batch, device),
                "staged": staged(host, batch, device),
            }
            for copy in sides.values():
                for number in range(WARM_UP):
                    sample(copy, host, batch, number)
            for _ in range(rounds):
                for side, copy in sides.items():
                    numbers = range(WARM_UP, WARM_UP + samples)
                    took[side].append([sample(copy, host, batch, i) for i in numbers])
            torch.cuda.synchronize(device)
    return {"bytes": size, "batch": batch, "us": took}


def summarise(samples: list[Row]) -> tuple[list[Row], Row]:
    """A row for each size and batch, and the headline."""
    rows = []
    for cell in samples:
        row: Row = {"bytes": cell["bytes"], "batch": cell["batch"]}
        medians = {side: [statistics.median(r) for r in cell["us"][side]] for side in SIDES}
        for side in SIDES:
            every = [us for one in cell["us"][side] for us in one]
            row[side] = {"p50_us": percentile(every, 0.5), "p99_us": percentile(every, 0.99)}
        for other in SIDES[1:]:
            row[f"gathered_vs_{other}"] = paired_ratio(medians["gathered"], medians[other])
        rows.append(row)
    headline = {
        f"worst_p50_vs_{other}": max(row[f"gathered_vs_{other}"]["median"] for row in rows)
        for other in SIDES[1:]
    }
    return rows, headline


def folder_of(gpu: str) -> str:
    """Where results of a GPU of this name lie.

    >>> folder_of("NVIDIA H100 80GB HBM3")
    'h100'
    """
    return gpu.lower().removeprefix("nvidia ").split()[0]


def missing() -> str | None:
    """Why nothing can be measured here."""
    if not torch.cuda.is_available():
        return "there is no NVIDIA GPU"
    try:
        cuda_driver()
    except (ImportError, RuntimeError) as error:
        return f"cuda-python: {error}"
    return None


def main() -> None:
    """Measure every size and batch."""
    args = Parser(__doc__).arguments()
    if reason := missing():
        print(f"{NAME}: nothing is measured: {reason}", file=sys.stderr)
        return
    device = torch.device("cuda", torch.cuda.current_device())
    gpu = torch.cuda.get_device_name(device)
    torch.cuda.synchronize(device)
    cells = [(size, batch) for size in SIZES for batch in BATCHES]
    progress = Progress(len(cells))
    samples = []
    for size, batch in cells:
        progress.step(f"{size} bytes, batch {batch}")
        count = QUICK_SAMPLES if args.quick else SAMPLES
        samples.append(measure(size, batch, args.rounds, count, device))
    rows, headline = summarise(samples)
    rows = [{"gpu": gpu, **row} for row in rows]
    path = write_result(
        f"{folder_of(gpu)}/{NAME}", quick=args.quick, rows=rows, headline=headline, samples=samples
    )
    for row in rows:
        times = ", ".join(f"{side} {row[side]['p50_us']:.1f}" for side in SIDES)
        print(f"{row['bytes']} bytes, batch {row['batch']}: p50 in us: {times}")
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
