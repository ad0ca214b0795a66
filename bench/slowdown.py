"""How well is it known what models cost each other on a slice that they share?

Workers of real models run beside each other on one slice, a set of cores, each pinned to it. Copies
of a model and pairs are run to learn how much of the slice each wants (FBR, PROTEAN section 3);
then triples that no fit has seen are run, and what was measured is held against

model       max(sum of FBR, 1)
padding     REEF's occupancy rule: shares of processor time, max(their sum, 1); all that padding
            goes by where there is no profile
no_model    nobody slows anybody down

Each error is a share of the slowdown that was measured; every model of a triple is timed. The time
alone on each kind of slice (RDF) is measured too.

Examples:
    python bench/slowdown.py              # five models, about 6 minutes
    python bench/slowdown.py --quick      # three models, under two minutes
    python bench/slowdown.py --cores 0,1 --seconds 2
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import disb_models
import psutil
from common import BENCH, Parser, Progress, Row, keep, write_result
from sides import BODIES, PHOTOGRAPHS

from shunter.allocator.cpus.cores import choose_cores
from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.placement.experiments import triples
from shunter.allocator.placement.slowdown import (
    Errors,
    Observation,
    contention,
    deficiency,
    errors,
    no_model,
    predicted,
)
from shunter.handlers.sample import Sample
from shunter.model_store.digits.archive import SAMPLE, pack_digits
from shunter.model_store.minilm.archive import pack_minilm
from shunter.model_store.pack import copy_config, pack
from shunter.model_store.resnet50.archive import pack_resnet50
from shunter.plugins.host import ModelWorker
from shunter.plugins.hosts import runtime_of
from shunter.plugins.profiling.together import Subject, Together, learn

NAME = "slowdown"
DISB = BENCH / "models/disb"
NETWORKS = ("densenet201", "distilbert")
QUICK = ("digits", "minilm", "resnet50")
BATCH = {"minilm": 4, "resnet50": 1, "digits": 256, "densenet201": 1, "distilbert": 1}
"""So that a batch takes 5 to 50 ms."""


def archives(store: Path, models: Sequence[str]) -> dict[str, Path]:
    """Pack the models."""
    found = {}
    for model in models:
        config = {"batchSize": BATCH[model]}
        if model == "minilm":
            found[model] = pack_minilm(store, config=config)
        elif model == "resnet50":
            found[model] = pack_resnet50(store, config=config)
        elif model == "digits":
            found[model] = pack_digits(store).path
        else:
            found[model] = _network(store, model)
    return found


def _network(store: Path, model: str) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "extra").mkdir()
        shutil.copy(DISB / "handler.py", folder)
        shutil.copy(BENCH / "disb_models.py", folder / "extra")
        handler = {"network": model, **disb_models.SMALL[model]}
        copy_config(DISB / "model-config.yaml", folder, {"handler": handler})
        return pack(folder, store, name=model)


def batch_of(model: str) -> list[Sample]:
    """The requests of a batch."""
    if model == "resnet50":
        bodies, kind = PHOTOGRAPHS.bodies, PHOTOGRAPHS.content_type
    else:
        known = {"minilm": BODIES, "digits": [json.dumps(SAMPLE).encode()]}
        bodies, kind = known.get(model, [b'{"seed": 0}']), "application/json"
    return [Sample(bodies[i % len(bodies)], kind) for i in range(BATCH[model])]


@contextmanager
def on_slice(
    found: dict[str, Path], cores: Sequence[int], threads: int, seconds: float
) -> Iterator[Together]:
    """Workers of these models, each with so many threads on all of these cores."""
    runtime = runtime_of()
    with ExitStack() as stack:
        subjects = {}
        for model, archive in found.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            unpacked = runtime.unpack(archive, folder)

            def start(of=unpacked, size=BATCH[model]) -> ModelWorker:  # type: ignore[no-untyped-def]
                return runtime.worker(of, threads=threads, cores=cores, batch=size).start()

            subjects[model] = Subject(start, batch_of(model))
        together = Together(subjects, seconds)
        stack.callback(together.close)
        yield together


def core_share(together: Together, model: str, cores: int) -> float:
    """Share of the slice's processor time that a model uses while it runs alone."""
    (worker,) = together._of((model,))
    process = psutil.Process(worker.pid)
    before, batches = sum(process.cpu_times()[:2]), 20
    spent = sum(worker.run(together.subjects[model].batch) for _ in range(batches))
    return (sum(process.cpu_times()[:2]) - before) / spent / cores


def as_row(side: str, found: Errors) -> Row:
    """Of a prediction."""
    return {"side": side, **vars(found)}


def measure(found: dict[str, Path], cores: Sequence[int], seconds: float, quick: bool) -> Row:
    """Learn, then run triples."""
    most = 2 * len(cores)
    with on_slice(found, cores, 1, seconds) as together:
        progress = Progress(30 if not quick else 12)
        seen, known = learn(together, most, lambda names: progress.step(" + ".join(names)))
        shares = {model: core_share(together, model, len(cores)) for model in found}
        held_out: list[Observation] = []
        for names in triples(sorted(found), known.fbr, most):
            progress.step(" + ".join(names))
            held_out += together.observe(names)
            keep(NAME, quick, [vars(each) for each in seen + held_out])
        alone = dict(together.alone_ms)
    return {
        "known": known,
        "shares": shares,
        "held_out": held_out,
        "seen": seen,
        "alone_ms": alone,
    }


def alone_on(found: dict[str, Path], cores: Sequence[int], seconds: float) -> dict[str, float]:
    """Time of a batch of a worker that has as many threads as the slice has cores."""
    with on_slice(found, cores, len(cores), seconds) as together:
        return {model: together.alone(model) for model in found}


def main() -> None:
    """Run and write the result."""
    parser = Parser(__doc__)
    parser.add_argument("--cores", help="of the slice, as 0,1; default: two of a NUMA node")
    parser.add_argument("--seconds", type=float, help="of a measurement, default 3, quick 1.5")
    args = parser.arguments()
    seconds = args.seconds or (1.5 if args.quick else 3.0)
    cores = [int(each) for each in args.cores.split(",")] if args.cores else None
    cores = cores or list(choose_cores(read_topology(), 2) or [0])
    models = QUICK if args.quick else (*QUICK, *NETWORKS)
    whole = f"{len(cores)} cores"
    with tempfile.TemporaryDirectory() as folder:
        found = archives(Path(folder), models)
        kinds = {"1 core": cores[:1], whole: cores}
        solo = {kind: alone_on(found, each, seconds) for kind, each in kinds.items()}
        measured = measure(found, cores, seconds, args.quick)
    known, shares, held_out = (measured[key] for key in ("known", "shares", "held_out"))
    sides = {
        "model": errors(held_out, lambda each: predicted(known.fbr, each)),
        "padding": errors(
            held_out, lambda each: contention(shares[model] for model in each.together)
        ),
        "no_model": errors(held_out, no_model),
    }
    rows: list[Row] = [as_row(side, of) for side, of in sides.items()]
    rows.append(as_row("fit", known.errors))
    for model in models:
        rdf = deficiency({kind: times[model] for kind, times in solo.items()}, whole)
        row = {"model": model, "alone_ms": {kind: solo[kind][model] for kind in kinds}, "rdf": rdf}
        bound = known.at_most.get(model)
        rows.append({**row, "fbr": known.fbr[model], "at_most": bound, "core": shares[model]})
    headline = {
        "median_error": sides["model"].median,
        "p90_error": sides["model"].p90,
        "median_error_padding": sides["padding"].median,
        "median_error_no_model": sides["no_model"].median,
    }
    samples = [vars(each) for each in measured["seen"] + held_out]
    path = write_result(NAME, quick=args.quick, rows=rows, headline=headline, samples=samples)
    for row in rows:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    print(json.dumps(headline), path.name)


if __name__ == "__main__":
    main()
