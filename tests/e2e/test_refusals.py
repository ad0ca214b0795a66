"""What is wrong is refused at the door, with words that help."""

import os
import signal

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
UNKNOWN = ("x-shunter-clas", "X-Shunter-Priority")
BAD_SECTIONS = [
    ({"slo": 50}, "shunter.slo"),
    ({"slo_ms": "fast"}, "shunter.slo_ms"),
    ({"class": "vip"}, "shunter.class"),
    ({"max_batch": 0}, "shunter.max_batch"),
    ({"configuration": "2by1"}, "shunter.configuration"),
    ({"cores": "all"}, "shunter.cores"),
    ({"retry": "never"}, "shunter.retry"),
    ({"wait": "forever"}, "shunter.wait"),
    ({"weights": "some"}, "shunter.weights"),
    ({"retry": False, "preemptible": {"drop": True}}, "shunter.retry"),
    ({"retry": False, "preemptible": {"drop": True}}, "shunter.preemptible.drop"),
    ("strict", "shunter"),
]


def test_a_bad_header_is_answered_400_that_names_it_and_reaches_no_handler(
    serve, site, wait_until
):
    model = serve()
    for name, value, allowed in BAD_MARKS:
        for path in ("", f"/v2/models/{model.name}/infer"):
            answer = model.ask(path=path, headers={name: value})
            assert answer.status == 400, answer
            message = answer["message"]
            assert name in message and f'"{value}"' in message and allowed in message
    for name in UNKNOWN:
        answer = model.ask(headers={name: "strict"})
        assert answer.status == 400, answer
        assert f'"{name.lower()}" is unknown' in answer["message"].lower()
        assert "allowed: x-shunter-class, x-shunter-deadline-ms" in answer["message"]
        assert "x-shunter-strict-key" in answer["message"]
    assert model.ask("good", headers={"x-shunterless": "1"}).status == 200
    assert model.order() == ["good"]
    assert model.count("rejected") == 2 * len(BAD_MARKS) + len(UNKNOWN)
    refused = f'refused; the last one: "{UNKNOWN[-1]}" is unknown; allowed: '.lower()

    def told():
        events = site.management("GET", "/shunter/events").json["events"]
        mine = [each["text"].lower() for each in events if each["about"] == f"{model.name}/1.0"]
        return any(refused in text for text in mine)

    wait_until("it is told why", told)


def test_a_model_whose_batches_may_begin_anew_refuses_what_must_not_run_twice(serve):
    model = serve(config={"shunter": {"class": "best_effort", "preemptible": {"drop": True}}})
    answer = model.ask("never twice", headers={"x-shunter-idempotent": "false"})
    assert answer.status == 400 and "shunter.preemptible.drop: true" in answer["message"]
    assert model.ask("twice", headers={"x-shunter-idempotent": "true"}).status == 200
    assert model.ask("may be").status == 200
    assert model.order() == ["twice", "may be"]


def test_a_bad_grpc_mark_is_answered_invalid_argument_and_reaches_no_handler(serve, grpc_client):
    import grpc

    model = serve()
    for name, value, allowed in BAD_MARKS:
        with pytest.raises(grpc.RpcError) as error:
            grpc_client.predict(model.name, {"data": b"{}", name: value.encode()})
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        details = error.value.details()
        assert name in details and f'"{value}"' in details and allowed in details
    with pytest.raises(grpc.RpcError) as error:
        grpc_client.predict(model.name, {"data": b"{}", "x-shunter-clas": b"strict"})
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert '"x-shunter-clas" is unknown' in error.value.details()
    assert model.order() == []
    assert model.count("rejected") == len(BAD_MARKS) + 1


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


SECRET = "s3cret-of-the-operator"
STRICT = {"x-shunter-class": "strict"}
WITH_KEY = {**STRICT, "X-Shunter-Strict-Key": SECRET}


@pytest.fixture(params=["torchserve", pytest.param("triton", marks=pytest.mark.triton)])
def guarded(request, start, tmp_path):
    """A server whose settings could not be read at its start, and what gives it others."""
    settings, secret = tmp_path / "shunter.toml", tmp_path / "secret"
    settings.write_text("[classes]\nallow_strict = 7\n")
    secret.write_text(SECRET + "\n")
    secret.chmod(0o600)

    def give(text):
        settings.write_text(text.replace("SECRET", str(secret)))
        os.kill(site.status()["controller"]["pid"], signal.SIGHUP)

    with start(request.param, settings) as site:
        yield site, give


def check_claims_by_grpc(site, model):
    grpc = pytest.importorskip("grpc")
    from shunter.plugins.torchserve.grpc_client import InferenceClient

    with InferenceClient(f"127.0.0.1:{site.server.grpc_inference}") as client:
        marks = {"data": b"{}", "x-shunter-class": b"strict"}
        with pytest.raises(grpc.RpcError) as error:
            client.predict(model.name, marks)
        assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED
        answer = client.predict(model.name, {**marks, "x-shunter-strict-key": SECRET.encode()})
        assert b'"data"' in answer and b"strict-key" not in answer


def test_an_operator_says_which_requests_may_call_themselves_strict(
    guarded, wait_until, tmp_path
):
    site, give = guarded
    may, other = site.add("may"), site.add("other")

    def statuses(headers, **more):
        return [model.ask(headers=headers, **more).status for model in (may, other)]

    assert statuses(STRICT) == [503, 503]
    assert statuses({}) == statuses({"x-shunter-class": "best-effort"}) == [200, 200]
    give(f'[classes]\nallow_strict = ["{may.name}"]\nstrict_secret_file = "SECRET"\n')
    wait_until("they are read", lambda: may.ask(headers=WITH_KEY).status == 200)
    assert may.ask(headers=WITH_KEY)["secret"] is None
    for bad in (STRICT, {**STRICT, "x-shunter-strict-key": SECRET[:-1]}):
        answer = may.ask(headers=bad)
        assert answer.status == may.FORBIDDEN
        assert f'model "{may.name}"' in answer["message"]
        assert "x-shunter-strict-key" in answer["message"]
        if may.tells_more:
            assert answer["type"] == "ForbiddenException"
            assert may.ask(headers=bad, path=f"/v2/models/{may.name}/infer").status == 403
    refused = other.ask(headers=WITH_KEY)
    assert refused.status == other.FORBIDDEN and "allow_strict" in refused["message"]
    assert statuses({}) == statuses({"x-shunter-class": "best-effort"}) == [200, 200]
    assert other.order() == ["r1", "r2", "r4", "r5"]
    if may.tells_more:
        check_claims_by_grpc(site, may)
    give('[classes]\nallow_strict = "none"\n')
    wait_until("none may", lambda: statuses(WITH_KEY) == [may.FORBIDDEN] * 2)
    give("")
    wait_until("all may", lambda: statuses(STRICT) == [200, 200])
    assert not may.tells_more or may.count("rejected") > 0
    written = [path.read_text(errors="replace") for path in tmp_path.rglob("*.log")]
    assert not any(SECRET in text for text in [site.log(), *written])
