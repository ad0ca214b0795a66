"""A page that waits for its answer, and a nightly job, on the same model and the same cores.

The job asks as fast as it can. Requests of the page say that they are strict and want their
answer within five seconds; those of the job are best effort. A strict request waits for the batch
that runs at most, however many others wait.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
from classify_jpeg import jpeg
from serving import serving, shunter

SECONDS = 12.0
PAGE = {"x-shunter-class": "strict", "x-shunter-deadline-ms": "5000"}
JOB = {"x-shunter-class": "best_effort"}
JOB_CLIENTS = 48


class Caller(threading.Thread):
    """Asks until it is told to stop."""

    def __init__(self, url: str, headers: dict[str, str], pause_s: float) -> None:
        super().__init__()
        self.url, self.headers, self.pause_s = url, headers, pause_s
        self.stopped = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.took_ms: list[float] = []

    def run(self) -> None:
        """See :class:`threading.Thread`."""
        picture = jpeg(7)
        with httpx.Client(timeout=60) as client:
            while not self.stopped.wait(self.pause_s):
                begun = time.monotonic()
                answer = client.post(self.url, content=picture, headers=self.headers)
                self.statuses[answer.status_code] += 1
                self.took_ms.append(1000 * (time.monotonic() - begun))


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        shunter("pack", "resnet50", "--store", folder)
        with serving(Path(folder), "--no-tokens") as server:
            url = f"{server.http}/predictions/resnet50"
            pages = [Caller(url, PAGE, 0.2) for _ in range(2)]
            jobs = [Caller(url, JOB, 0) for _ in range(JOB_CLIENTS)]
            for caller in [*pages, *jobs]:
                caller.start()
            time.sleep(SECONDS)
            for caller in [*pages, *jobs]:
                caller.stopped.set()
            for caller in [*pages, *jobs]:
                caller.join()
            for name, callers in (("page", pages), ("job", jobs)):
                took = sorted(ms for caller in callers for ms in caller.took_ms)
                statuses = sum((caller.statuses for caller in callers), Counter())
                print(
                    f"{name}: {len(took) / SECONDS:.0f} requests/s, median "
                    f"{statistics.median(took):.1f} ms, p99 {took[int(0.99 * len(took))]:.1f} ms, "
                    f"answers {dict(statuses)}"
                )
                assert statuses[200] > 0, f"nobody answered the {name}"


if __name__ == "__main__":
    main()
