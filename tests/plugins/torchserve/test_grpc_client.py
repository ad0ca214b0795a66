"""The messages on the wire: field numbers and types as literals."""

import pytest

pytest.importorskip("grpc")

from shunter.plugins.torchserve import grpc_client


def test_a_request_has_the_field_numbers_of_inference_proto():
    request = grpc_client.PredictionsRequest(model_name="digits", model_version="1.0")
    request.input["data"] = b"\x00\xff"
    assert request.SerializeToString(deterministic=True) == (
        b"\x0a\x06digits"  # 1: string model_name
        b"\x12\x031.0"  # 2: string model_version
        b"\x1a\x0a"  # 3: map<string, bytes> input, one entry of ten bytes
        b"\x0a\x04data"  # key
        b"\x12\x02\x00\xff"  # value
    )


def test_the_prediction_is_field_one_and_unknown_fields_are_skipped():
    answer = grpc_client.PredictionResponse.FromString(b"\x0a\x02ok\x12\x03seq")
    assert answer.prediction == b"ok"
