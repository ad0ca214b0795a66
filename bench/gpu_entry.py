"""From a payload in the host's queue to its entry on a GPU, by three ways, per size and batch.

``ring``: what a worker does, DMA from the pinned ring of the host into the ring of the device.
``pageable``: the same ring not pinned, a tensor made by ``.to(device)``, as handlers do it.
``staged``: a copy into a pinned buffer and DMA from there, as data loaders do it.

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
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import torch
from common import Parser, Progress, Row, paired_ratio, percentile, write_result

from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.device.driver import Driver, cuda_driver
from shunter.handlers.device.memory import cuda_view, make_ring, pin

NAME = "gpu_entry"
SIZES = {784: 1024, 6144: 1024, 602_112: 512}
"""Bytes of a request, and entries of its queue."""
BATCHES = (1, 8)
SIDES = ("ring", "pageable", "staged")
SAMPLES, QUICK_SAMPLES = 500, 100
WARM_UP = 20
Copy = Callable[[int], torch.Tensor]
"""Bring a batch to the device; it is there when this returns. Takes its first entry."""


@contextmanager
def queue_of(size: int) -> Iterator[tuple[TensorQueue, torch.Tensor]]:
    """A queue whose requests are of ``size`` bytes, and its input ring."""
    specs = [TensorSpec("payload", "uint8", (size,))], [TensorSpec("answer", "uint8", (4096,))]
    queue = TensorQueue.create(1, *specs, SIZES[size])
    with closing(queue):
        yield queue, torch.from_numpy(queue.arrays()[0][0])


def ring(driver: Driver, queue: TensorQueue, batch: int, device: torch.device) -> Copy:
    """Straight into the device's ring."""
    host, size = queue.rings[0], queue.inputs[0].bytes
    assert host is not None
    pin(driver, host.address, host.size)
    there = make_ring(driver, host.address, queue.entries, size, batch)
    view = cuda_view(there.address, (there.rows, size), "uint8", device)
    stream, event = driver.stream(), driver.event()

    def copy(first: int) -> torch.Tensor:
        for to, begin, length in there.copies(first, batch):
            driver.call("cuMemcpyHtoDAsync", to, begin, length, stream)
        driver.call("cuEventRecord", event, stream)
        while not driver.is_done(event):
            pass
        return view[first : first + batch]

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
    first = number * batch % (len(host) // 2)  # a batch never passes the end of the ring
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
    with queue_of(size) as (queue, pinned), queue_of(size) as (_, plain):
        driver = Driver(cuda_driver(), device.index)
        with driver.made:
            sides = {
                "ring": (ring(driver, queue, batch, device), pinned),
                "pageable": (pageable(plain, batch, device), plain),
                "staged": (staged(plain, batch, device), plain),
            }
            for copy, host in sides.values():
                for number in range(WARM_UP):
                    sample(copy, host, batch, number)
            for _ in range(rounds):
                for side, (copy, host) in sides.items():
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
            row[f"ring_vs_{other}"] = paired_ratio(medians["ring"], medians[other])
        rows.append(row)
    headline = {
        f"worst_p50_vs_{other}": max(row[f"ring_vs_{other}"]["median"] for row in rows)
        for other in SIDES[1:]
    }
    return rows, headline


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
    folder = gpu.lower().removeprefix("nvidia ").split()[0]
    path = write_result(
        f"{folder}/{NAME}", quick=args.quick, rows=rows, headline=headline, samples=samples
    )
    for row in rows:
        times = ", ".join(f"{side} {row[side]['p50_us']:.1f}" for side in SIDES)
        print(f"{row['bytes']} bytes, batch {row['batch']}: p50 in us: {times}")
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
