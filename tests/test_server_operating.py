"""Health, warm-up, the model list and metrics tell an operator the truth, over HTTP."""

from __future__ import annotations

import httpx2
import pytest
from fake_engine import READY, FakeEngine, Script
from pictures_to_send import data_url, png
from served_api import serving

from vlm.chat import ChatEngine, ModelState, Piece
from vlm.config import Settings
from vlm.server.metrics import Metrics
from vlm.units import MIB

pytest_plugins = ("server_fixtures",)


def test_health_is_503_with_progress_then_200_and_500_with_the_reason(
    api_engine: FakeEngine, web: httpx2.Client
) -> None:
    api_engine.model_state = ModelState(
        "downloading", "Downloading.", done_bytes=250, total_bytes=1000, eta_s=7.5
    )
    loading = web.get("/health")
    assert loading.status_code == 503
    said = loading.json()
    assert (said["status"], said["progress"], said["eta_s"]) == ("downloading", 0.25, 7.5)

    api_engine.model_state = READY
    ready = web.get("/health")
    assert (ready.status_code, ready.json()["model"]) == (200, "fake/Fake-VL")

    api_engine.model_state = ModelState("failed", "The disk is full. Free some space.")
    failed = web.get("/health")
    assert failed.status_code == 500
    assert failed.json()["message"] == "The disk is full. Free some space."


@pytest.mark.parametrize("way", ["nothing", "raw", "json"])
def test_warm_up_asks_about_a_picture_and_leaves_no_chat_behind(
    way: str, api_engine: FakeEngine, web: httpx2.Client
) -> None:
    if way == "raw":
        answer = web.post("/warmup", content=png(), headers={"Content-Type": "image/png"})
    elif way == "json":
        answer = web.post("/warmup", json={"picture": data_url(png())})
    else:
        answer = web.post("/warmup")
    assert answer.status_code == 200
    said = answer.json()
    assert said["status"] == "ready" and said["latency_ms"] > 0
    asked = api_engine.requests[0]
    (picture,) = asked.messages[0].pictures
    if way != "nothing":
        assert picture.image.getpixel((0, 0)) == (255, 0, 0)
    assert api_engine.forgotten == [asked.conversation_id]


def test_warm_up_tells_what_is_wrong(api_engine: FakeEngine, web: httpx2.Client) -> None:
    no_picture = web.post("/warmup", content=b"%PDF-1.7", headers={"Content-Type": "image/png"})
    assert no_picture.status_code == 400
    assert "PDF" in no_picture.json()["error"]["message"]
    api_engine.model_state = ModelState("failed", "No model here.")
    failed = web.post("/warmup")
    assert (failed.status_code, failed.json()["error"]["message"]) == (500, "No model here.")
    assert not api_engine.requests


def test_models_lists_the_model_once_it_is_known(
    api_engine: FakeEngine, web: httpx2.Client
) -> None:
    assert [model["id"] for model in web.get("/v1/models").json()["data"]] == ["fake/Fake-VL"]
    assert web.get("/v1/models/fake/Fake-VL").json()["id"] == "fake/Fake-VL"
    missing = web.get("/v1/models/gpt-4o")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"
    assert web.post("/v1/embeddings").json()["error"]["type"] == "not_found_error"
    assert web.get("/v1/chat/completions").status_code == 404
    api_engine.model_state = ModelState("finding")
    assert web.get("/v1/models").json() == {"object": "list", "data": []}


def test_metrics_count_what_happened(api_engine: FakeEngine) -> None:
    with serving(api_engine) as url, httpx2.Client(base_url=url, trust_env=False) as web:
        assert web.post("/warmup").status_code == 200
        api_engine.is_full = True
        assert web.post("/warmup").status_code == 429
        api_engine.is_full = False
        api_engine.script = Script(before=(Piece("queued"),), error=ValueError("secret"))
        broken = web.post("/warmup")
        assert broken.status_code == 500 and "secret" not in broken.text
        shown = web.get("/metrics")
    assert shown.headers["content-type"].startswith("text/plain")
    lines = shown.text.splitlines()
    for line in (
        'vlm_answers_total{outcome="stop",source="api"} 1.0',
        'vlm_answers_total{outcome="refused",source="api"} 1.0',
        'vlm_answers_total{outcome="failed",source="api"} 1.0',
        'vlm_visual_tokens_total{source="api"} 60.0',
        'vlm_memory_bytes{part="kv_cache"} 1.34217728e+08',
        'vlm_ttft_seconds_bucket{le="2.0"} 1.0',
        'vlm_ttft_seconds_bucket{le="1.0"} 0.0',
        'vlm_decode_tokens_per_second_bucket{le="16.0"} 1.0',
        'vlm_http_requests_total{path="/warmup",status="429"} 1.0',
        "vlm_waiting_questions 0.0",
        "vlm_running_answers 0.0",
        "vlm_ready 1.0",
    ):
        assert line in lines, line


def test_a_key_is_asked_for_where_one_is_set(api_engine: FakeEngine) -> None:
    settings = Settings.model_validate({"server": {"api_key": "s3cret-clé"}})
    with serving(api_engine, settings) as url, httpx2.Client(base_url=url, trust_env=False) as web:
        assert web.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer s3cret"}, {"Authorization": "Basic x"}):
            for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/warmup")):
                refused = web.request(method, path, headers=headers)
                assert refused.status_code == 401
                assert refused.json()["error"]["code"] == "invalid_api_key"
                assert "s3cret-" not in refused.text
        right = {"Authorization": "Bearer s3cret-clé".encode()}
        assert web.get("/v1/models", headers=right).status_code == 200
    assert not api_engine.requests


def test_a_page_of_another_site_gets_nothing(api_engine: FakeEngine, web: httpx2.Client) -> None:
    foreign = web.post("/warmup", headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert web.post("/warmup", headers={"Origin": "null"}).status_code == 403
    assert not api_engine.requests
    assert web.post("/warmup", headers={"Origin": "http://localhost:3000"}).status_code == 200


def test_a_watched_engine_is_the_engine_in_all_else(api_engine: FakeEngine) -> None:
    watched = Metrics(api_engine).watch("page")
    methods = {name for name in vars(ChatEngine) if not name.startswith("_")}
    assert {"ask", "read_ahead", "forget"} <= methods
    assert not {name for name in methods if not callable(getattr(watched, name, None))}
    watched.forget("one")
    watched.retry_load()
    assert watched.free_caches() == 128 * MIB
    assert (api_engine.forgotten, api_engine.load_retries) == (["one"], 1)
    assert watched.state() is api_engine.model_state and watched.memory() == api_engine.memory()
