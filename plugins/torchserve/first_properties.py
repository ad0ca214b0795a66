"""A ``config.properties`` to begin with. Pure."""

from __future__ import annotations

from pathlib import Path


def text(store: Path, plugins: Path) -> str:
    """A ``config.properties`` for TorchServe with Shunter."""
    return f"""\
# TorchServe 0.12 with Shunter. Paths are absolute, so that it can be started from anywhere.
model_store={store.absolute()}
load_models=all
plugins_path={plugins}
inference_address=http://127.0.0.1:8080
management_address=http://127.0.0.1:8081
metrics_address=http://127.0.0.1:8082
grpc_inference_address=127.0.0.1
grpc_management_address=127.0.0.1
grpc_inference_port=7070
grpc_management_port=7071
metrics_mode=prometheus
# Requests that wait for a model; one more is answered 503.
job_queue_size=1000
# Without these keys nobody may load models; they stand in key_file.json, in the working directory.
disable_token_authorization=false
"""
