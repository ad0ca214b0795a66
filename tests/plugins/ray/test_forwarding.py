"""What a gateway does with a request, as tables."""

import math

import pytest

from shunter.plugins.ray.gateway.forwarding import (
    TRIES,
    Outcome,
    Terms,
    is_refusal,
    may_try_again,
    passed_back,
    passed_on,
    target,
    terms,
)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/predictions/digits", "digits"),
        ("/predictions/digits/2.0", "digits/2.0"),
        ("/predictions/a%20b", "a b"),
        ("/predictions/digits/2.0/more", None),
        ("/predictions/", None),
        ("/explanations/digits", "digits"),
        ("/v1/models/digits:predict", "digits"),
        ("/v2/models/digits/infer", "digits"),
        ("/v2/models/digits", "digits"),
        ("/v2/models/digits/versions/3/infer", "digits/3"),
        ("/v2/models/", None),
        ("/v2", None),
        ("/models/digits", None),
        ("/", None),
    ],
)
def test_the_model_of_a_path(path, model):
    assert target(path) == model


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, Terms("m")),
        ({"x-shunter-class": "strict"}, Terms("m", is_strict=True)),
        ({"x-shunter-class": "Best_Effort "}, Terms("m", is_strict=False)),
        ({"x-shunter-class": "urgent"}, Terms("m")),
        ({"x-shunter-deadline-ms": "250"}, Terms("m", deadline_s=0.25)),
        ({"x-shunter-deadline-ms": "0"}, Terms("m")),
        ({"x-shunter-deadline-ms": "-1"}, Terms("m")),
        ({"x-shunter-deadline-ms": "nan"}, Terms("m")),
        ({"x-shunter-deadline-ms": "1e3"}, Terms("m")),
        ({"x-shunter-idempotent": "true"}, Terms("m", may_repeat=True)),
        ({"x-shunter-idempotent": "FALSE"}, Terms("m", may_repeat=False)),
        ({"x-shunter-idempotent": "perhaps"}, Terms("m")),
    ],
)
def test_what_a_request_says_of_itself(headers, expected):
    assert terms("m", headers) == expected


@pytest.mark.parametrize(
    ("outcome", "may_repeat", "tried", "left_s", "again"),
    [
        (Outcome.NOT_SENT, False, 1, math.inf, True),
        (Outcome.REFUSED, False, 1, math.inf, True),
        (Outcome.LOST, False, 1, math.inf, False),
        (Outcome.LOST, True, 1, math.inf, True),
        (Outcome.LOST, True, 1, 0.001, True),
        (Outcome.LOST, True, 1, 0.0, False),
        (Outcome.NOT_SENT, True, 1, -0.1, False),
        (Outcome.LOST, True, TRIES, math.inf, False),
        (Outcome.NOT_SENT, True, TRIES, math.inf, False),
        (Outcome.ANSWER_CUT, True, 1, math.inf, False),
    ],
)
def test_what_is_tried_again(outcome, may_repeat, tried, left_s, again):
    assert may_try_again(outcome, may_repeat=may_repeat, tried=tried, left_s=left_s) is again


def test_headers_of_a_connection_stay_there():
    given = [
        ("Host", "gateway"),
        ("Connection", "close, X-Mine"),
        ("X-Mine", "1"),
        ("Content-Length", "3"),
        ("Transfer-Encoding", "chunked"),
        ("Expect", "100-continue"),
        ("X-Shunter-Class", "strict"),
        ("Accept", "a"),
        ("Accept", "b"),
    ]
    assert passed_on(given) == [("X-Shunter-Class", "strict"), ("Accept", "a"), ("Accept", "b")]


@pytest.mark.parametrize(
    ("value", "spent_s", "passed"),
    [
        ("100", 0.025, "75.000"),
        ("100", 0.2, "0.001"),
        ("0.5", 0.0, "0.500"),
        ("soon", 0.025, "soon"),
        ("0", 0.025, "0"),
    ],
)
def test_a_deadline_is_nearer_by_what_has_passed(value, spent_s, passed):
    given = [("x-shunter-deadline-ms", value)]
    assert passed_on(given, spent_s=spent_s) == [("x-shunter-deadline-ms", passed)]


def test_an_answer_keeps_its_length_and_loses_what_is_of_the_connection():
    given = [("content-length", "3"), ("connection", "keep-alive"), ("x-request-id", "7")]
    assert passed_back(given) == [("content-length", "3"), ("x-request-id", "7")]


@pytest.mark.parametrize(
    ("body", "is_own"),
    [
        (b'{"code": 503, "type": "ServiceUnavailableException"}', True),
        (b'{"type": "Other"}', False),
        (b"[]", False),
        (b"\xff", False),
        (b"", False),
    ],
)
def test_a_503_of_a_handler_is_told_from_a_servers(body, is_own):
    assert is_refusal(body) is is_own
