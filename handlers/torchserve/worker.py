"""``python -m shunter.handlers.torchserve.worker``: a model worker with TorchServe's command line.

It speaks TorchServe's worker protocol and runs unmodified archives. What it does before anything
else is to choose how it allocates memory (:mod:`shunter.handlers.placement.allocation`) and to take
its place (:mod:`shunter.handlers.placement.placement`), hence the late import of whatever may
bring torch.
"""

from __future__ import annotations

import gc
import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from shunter.handlers.placement.allocation import start_anew_if_wanted
from shunter.handlers.placement.placement import Place, PlacementError, read_placement
from shunter.handlers.pool.seat import take_if_wanted

POOL = "shunter.handlers.torchserve.pool.worker"
"""The program of a process that has several models."""


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """Return TorchServe's arguments; exit with status 2 if this worker cannot serve them."""
    from ts.arg_parser import ArgParser

    parser = ArgParser.model_service_worker_args()
    parser.prog = "python -m shunter.handlers.torchserve.worker"
    args = parser.parse_args(argv)
    if args.async_comm:
        parser.error("--async is for TorchServe's own worker; models with it keep that one")
    rank = os.environ.get("LOCAL_RANK", "0")
    if rank != "0":
        parser.error(f"LOCAL_RANK={rank}: parallel models keep TorchServe's own worker")
    if args.sock_type == "unix" and not args.sock_name:
        parser.error("--sock-type unix needs --sock-name")
    if args.sock_type == "tcp" and not args.port:
        parser.error("--sock-type tcp needs --port")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one worker; return its exit status."""
    args = parse_args(argv)
    try:
        placement = read_placement(os.environ)
        place = Place(placement, os.environ)
    except PlacementError as error:
        print(f"Model worker cannot take its place: {error}", flush=True)
        return 1
    # Nothing of what they import is garbage: the collector need not look, now or while serving.
    gc.disable()
    import wrapt

    from shunter.handlers.torchserve.without_torch import import_protocol

    import_protocol()
    from shunter.handlers.torchserve import serving

    gc.freeze()
    gc.enable()
    wrapt.register_post_import_hook(lambda torch: gc.freeze(), "torch")  # the handler's part of it
    return serving.run(args, placement.threads, place.settle)


def _forget_working_directory() -> None:
    """Undo what ``-m`` did to the path: TorchServe decides where handlers are imported from."""
    if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd():
        del sys.path[0]


if __name__ == "__main__":
    take_if_wanted(POOL, os.environ)
    start_anew_if_wanted()
    _forget_working_directory()
    sys.exit(main())
