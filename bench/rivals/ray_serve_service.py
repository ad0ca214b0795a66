"""The Ray Serve application: one deployment whose batches Ray forms, the model code of the archive.

``ray_serve_server`` starts it in a process of its own and sets what it reads.
"""

from __future__ import annotations

import signal

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from rivals.hosted import Hosted, settings

_GIVEN = settings()
_QUIET = {"enable_access_log": False, "log_level": "ERROR"}


@serve.deployment(
    num_replicas=_GIVEN["replicas"],
    ray_actor_options={"num_cpus": 0},
    max_ongoing_requests=4 * _GIVEN["max_batch"],
    logging_config=_QUIET,
)
class Model:
    """A body to an answer."""

    def __init__(self) -> None:
        self._hosted = Hosted()

    @serve.batch(
        max_batch_size=_GIVEN["max_batch"], batch_wait_timeout_s=_GIVEN["wait_ms"] / 1e3
    )
    async def answers(self, bodies: list[bytes]) -> list[str]:
        """Of a batch."""
        return self._hosted.handled(bodies)

    async def __call__(self, request: Request) -> Response:
        """One request by HTTP."""
        return Response(await self.answers(await request.body()))


def main() -> None:
    """Serve until SIGTERM."""
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=80_000_000)
    serve.start(http_options={"host": "127.0.0.1", "port": _GIVEN["port"]}, logging_config=_QUIET)
    serve.run(Model.bind(), route_prefix="/predict")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    ray.shutdown()


if __name__ == "__main__":
    main()
