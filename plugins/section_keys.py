"""The keys of a model's own ``shunter:`` section, in the ``model-config.yaml`` of its archive."""

from __future__ import annotations

SECTION = (
    *("auto", "class", "configuration", "cores", "device", "environment", "groups", "max_batch"),
    *("network", "pool", "preemptible", "resident", "retry", "sample", "slo_ms", "tensors"),
    *("wait", "weights"),
)
