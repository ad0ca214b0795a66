"""What is wrong is refused at the door, with words that help."""

import pytest

pytestmark = pytest.mark.e2e

BAD_MARKS = [
    ("x-shunter-class", "urgent", "strict, best-effort"),
    ("x-shunter-deadline-ms", "soon", "above 0"),
    ("x-shunter-deadline-ms", "0", "above 0"),
    ("x-shunter-deadline-ms", "-5", "above 0"),
    ("x-shunter-deadline-ms", "86400001", "at most 86400000"),
    ("x-shunter-deadline-ms", "NaN", "above 0"),
    ("x-shunter-idempotent", "maybe", "true, false"),
]
BAD_SECTIONS = [
    ({"slo": 50}, "shunter.slo"),
    ({"slo_ms": "fast"}, "shunter.slo_ms"),
    ({"class": "vip"}, "shunter.class"),
    ({"max_batch": 0}, "shunter.max_batch"),
    ({"configuration": "2by1"}, "shunter.configuration"),
    ({"cores": "all"}, "shunter.cores"),
    ({"retry": "never"}, "shunter.retry"),
    ({"wait": "forever"}, "shunter.wait"),
    ("strict", "shunter"),
]


def test_a_bad_header_is_answered_400_that_names_it_and_reaches_no_handler(serve):
    model = serve()
    for name, value, allowed in BAD_MARKS:
        for path in ("", f"/v2/models/{model.name}/infer"):
            answer = model.ask(path=path, headers={name: value})
            assert answer.status == 400, answer
            message = answer["message"]
            assert name in message and f'"{value}"' in message and allowed in message
    assert model.ask("good").status == 200
    assert model.order() == ["good"]
    assert model.count("rejected") == 2 * len(BAD_MARKS)


def test_a_bad_grpc_mark_is_answered_invalid_argument_and_reaches_no_handler(serve, grpc_client):
    import grpc

    model = serve()
    for name, value, allowed in BAD_MARKS:
        with pytest.raises(grpc.RpcError) as error:
            grpc_client.predict(model.name, {"data": b"{}", name: value.encode()})
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        details = error.value.details()
        assert name in details and f'"{value}"' in details and allowed in details
    assert model.order() == []
    assert model.count("rejected") == len(BAD_MARKS)


@pytest.mark.parametrize(("section", "key"), BAD_SECTIONS, ids=[key for _, key in BAD_SECTIONS])
def test_a_bad_section_fails_the_registration_with_400_and_undoes_it(site, serve, section, key):
    archive = site.archives.add("wrong", config={"shunter": section})
    answer = site.register("wrong", archive)
    assert answer.status == 400, answer
    assert f"{key}:" in answer["message"] or f"{key} " in answer["message"]
    assert "wrong" not in site.models()


def test_an_archive_can_be_registered_once_its_section_is_right(site, serve):
    archive = site.archives.add("righted", config={"shunter": {"slo_ms": -1}})
    assert site.register("righted", archive).status == 400
    assert serve("righted", config={"shunter": {"slo_ms": 60_000}}).ask().status == 200


def test_a_full_queue_is_answered_503_that_says_so_and_what_waits_is_served(serve, grpc_client):
    import grpc

    model = serve("ordered", config={"jobQueueSize": 2})
    gate, held = model.hold()
    waiting = [model.queue("q0"), model.queue("q1")]
    refused = model.ask("q2")
    assert refused.status == 503, refused
    assert "2 requests wait already" in refused["message"]
    with pytest.raises(grpc.RpcError) as error:
        grpc_client.predict(model.name, {"data": b"{}"})
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "2 requests wait already" in error.value.details()
    gate.open()
    assert [f.result().status for f in (*held, *waiting)] == [200] * 3
    assert model.order() == ["held", "q0", "q1"]
    assert model.count("rejected") == 2
