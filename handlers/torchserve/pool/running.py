"""What a pool process does from when its place is settled until its last seat has gone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from ts.service import Service

from shunter.allocator.memory.host import available_bytes
from shunter.handlers.placement import gentle, pointwise
from shunter.handlers.pool.models import PooledModels
from shunter.handlers.pool.reception import Reception
from shunter.handlers.pool.report import Report
from shunter.handlers.pool.seat import POOL, RUNTIME
from shunter.handlers.torchserve.output import LINES
from shunter.handlers.torchserve.pool.part import GPU, hot_bytes
from shunter.handlers.torchserve.pool.process import PoolProcess
from shunter.handlers.torchserve.serving import log_lines, use_threads
from shunter.handlers.weights.device_memory import Cuda
from shunter.handlers.weights.setting import folder_of


def run(reception: Reception, threads: int, environ: Mapping[str, str]) -> int:
    """Serve until the last seat has gone; return the exit status."""
    log_lines()
    LINES.start()  # else it would be taken for a thread of the model that logs first
    use_threads(threads)
    pointwise.use()
    weights = folder_of(environ)
    assert weights is not None, "who belongs to no server has no seats"
    driver, hot = None, 0
    if environ.get(GPU, "").isdecimal() and torch.cuda.is_available():
        torch.cuda.set_device(int(environ[GPU]))  # as a handler does that is told its number
        driver = Cuda(int(environ[GPU]))
        hot = hot_bytes(environ, driver.free_bytes(), torch.cuda.device_count())
    else:
        hot = hot_bytes(environ, available_bytes())
    models = PooledModels[Service](weights, hot, driver=driver)
    report = Report(Path(environ[RUNTIME]), int(environ[POOL]), models)
    PoolProcess(reception, models, report).serve()
    report.remove()
    gentle.leave()
    LINES.flush()
    os._exit(0)  # taking the models down one by one would take longer, and gives nothing back
