"""Multiprocessors set aside: streams whose kernels stay on a part of the device (green contexts).

What the driver does for MPS's static partitions, within one process. Bandwidth is not divided.
``torch.cuda.green_contexts`` makes such streams too, but does not say how many multiprocessors they
got, and is not in every torch that this runs with.
"""

from __future__ import annotations

from typing import Any

from shunter.handlers.device.driver import DeviceError, Driver


def green_stream(driver: Driver, sms: int) -> tuple[Any, int]:
    """A stream on at least ``sms`` multiprocessors, and how many it has.

    Its green context lives as long as the driver. Work must be captured on this stream to stay
    there. Raises DeviceError where there are no green contexts, or not so many multiprocessors.
    """
    cuda = driver.module
    try:
        kind = cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        flags = int(cuda.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
    except AttributeError as error:
        raise DeviceError(f"no green contexts: {error}") from error
    everything = driver.call("cuDeviceGetDevResource", driver.device, kind)
    parts, *_ = driver.results("cuDevSmResourceSplitByCount", 1, everything, 0, sms)
    resources = [parts[0], *_queues(driver)]
    wanted = driver.call("cuDevResourceGenerateDesc", resources, len(resources))
    context = driver.call("cuGreenCtxCreate", wanted, driver.device, flags)
    driver.made.callback(driver.call, "cuGreenCtxDestroy", context)
    kind = int(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)
    lowest, _ = driver.results("cuCtxGetStreamPriorityRange")
    stream = driver.call("cuGreenCtxStreamCreate", context, kind, lowest)
    driver.made.callback(driver.call, "cuStreamDestroy", stream)
    return stream, int(parts[0].sm.smCount)


def _queues(driver: Driver) -> list[Any]:
    """Hardware queues of its own, which contexts share else: one stream could hold up another.

    None where the driver (before 13.1) or the binding does not know of them.
    """
    cuda = driver.module
    try:
        kind = cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG
        scope = cuda.CUdevWorkqueueConfigScope.CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED
        found = driver.call("cuDeviceGetDevResource", driver.device, kind)
    except (AttributeError, DeviceError):
        return []
    queues = found.wqConfig
    queues.sharingScope = scope
    found.wqConfig = queues
    return [found]
