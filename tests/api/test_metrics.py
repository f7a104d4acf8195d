"""`/metrics` and `/v1/stats` count every request once, however it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from pathlib import Path

import httpx
import msgspec
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.observe.telemetry import Telemetry
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, api, client, locked_api, new_engine, served
from tests.api.sockets import opened
from tests.api.talking import MESSAGES, chat, complete
from tests.api.watching import observed_server, page
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
REQUESTS = "ocs_requests_total"


async def counted_labels(http: httpx.AsyncClient) -> list[dict[str, str]]:
    """Labels of all requests except those for `/metrics` itself."""
    series = (await page(http)).series(REQUESTS)
    return [labels for labels in series if labels["route"] != "/metrics"]


async def test_each_request_is_counted_once_under_its_outcome() -> None:
    async with observed_server() as server:
        await chat(server.http)
        await chat(server.http, stream=True, service_tier="flex")
        await complete(server.http, prompt=["a", "b"])
        await chat(server.http, temperature=9)
        await server.http.get("/v1/models/nobody")
        await server.http.get(CHAT)
        await server.http.get("/nowhere")
        await server.http.get("/health")
        keys = ("method", "route", "priority", "status")
        labels_of_requests = await counted_labels(server.http)
        assert {labels["origin"] for labels in labels_of_requests} == {"http"}
        assert sorted(tuple(labels[key] for key in keys) for labels in labels_of_requests) == [
            ("GET", "/health", "none", "200"),
            ("GET", CHAT, "none", "405"),
            ("GET", "/v1/models/{id}", "none", "404"),
            ("GET", "other", "none", "404"),
            ("POST", CHAT, "batch", "200"),
            ("POST", CHAT, "interactive", "200"),
            ("POST", CHAT, "interactive", "400"),
            ("POST", "/v1/completions", "interactive", "200"),
        ]
        now = await page(server.http)
        assert now.sum(REQUESTS) - now.sum(REQUESTS, route="/metrics") == 8
        for code in ("model_not_found", "method_not_allowed", "unknown_url", "decimal_above_max_value"):
            assert now.sum("ocs_refusals_total", code=code) == 1
        assert now.sum("ocs_refusals_total") == 4


REFUSED: list[tuple[bytes, dict[str, str], str]] = [
    (b'{"temperature": 9}', {}, "interactive"),
    (b'{"temperature": 9}', {"x-priority": "batch"}, "batch"),
    (b'{"temperature": 9, "service_tier": "flex"}', {}, "interactive"),
    (b'{"temperature": 9, "priority": "batch"}', {}, "interactive"),
    (b'{"temperature": 9, "priority": "batch"}', {"x-priority": "interactive"}, "interactive"),
    (b"{", {"x-priority": "batch"}, "batch"),
    (b"[" * 100_000, {}, "interactive"),
    (b'{"priority": 5}', {"x-priority": "batch"}, "batch"),
    (b'{"priority": "high"}', {}, "interactive"),
    (b"{}", {"x-priority": "high"}, "none"),
]


@pytest.mark.parametrize(("body", "headers", "priority"), REFUSED)
async def test_an_early_refusal_has_a_priority(body: bytes, headers: dict[str, str], priority: str) -> None:
    telemetry = Telemetry.new(model="fake")
    async with client(create_api(served(FakeEngine()), OPTIONS, telemetry=telemetry).app) as http:
        assert (await http.post(CHAT, content=body, headers=headers)).status_code == 400
        assert [labels["priority"] for labels in await counted_labels(http)] == [priority]


async def test_a_refusal_before_the_body_is_read_has_the_priority_of_its_key(tmp_path: Path) -> None:
    keys = key_ring(tmp_path, ann='priority = "batch"', bob="", root="admin = true")
    app = locked_api(FakeEngine(), keys, options=msgspec.structs.replace(OPTIONS, max_body_bytes=10))
    async with client(app, of("root")) as http:
        for name, more in (("ann", {}), ("ann", {"x-priority": "interactive"}), ("bob", {}), ("eve", {})):
            await http.post("/v1/completions", content=b"x" * 99, headers={**of(name), **more})
        now = await page(http)
    for priority, status, number in (("batch", "413", 1), ("interactive", "413", 2), ("none", "401", 1)):
        assert now.sum(REQUESTS, priority=priority, status=status) == number


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_counted_once_and_is_in_the_gauges_before(stream: bool) -> None:
    async with observed_server("step_s=0.02") as server:
        body = {"messages": MESSAGES, "ignore_eos": True, "stream": stream, "service_tier": "flex"}
        async with exchange(server.app, CHAT, body) as leaving:
            await eventually(lambda: server.engine.status().kv_tokens_used > 0)
            now = await page(server.http)
            leaving.disconnect()
        assert now.sum("ocs_requests_running", priority="batch") == 1
        assert now.sum("ocs_requests_running", priority="interactive") == 0
        assert now.sum("ocs_kv_pool_blocks") == 256
        assert now.sum("ocs_kv_pool_blocks_used") >= 1
        assert now.sum("ocs_prefix_cache_capacity_bytes") == 4096
        assert now.sum("ocs_engine_ready") == 1
        assert now.sum("ocs_process_resident_memory_bytes") > 0
        assert now.sum("ocs_memory_resident_bytes") > now.sum("ocs_process_resident_memory_bytes")
        assert [labels["status"] for labels in await counted_labels(server.http)] == ["499"]
        now = await page(server.http)
        assert now.sum("ocs_request_seconds_count") == 1
        assert now.sum("ocs_sequences_total", reason="unfinished") == now.sum("ocs_sequences_total") == 1


async def test_a_message_without_a_request_counts_as_a_refused_post(caplog: pytest.LogCaptureFixture) -> None:
    """A client that closes the socket counts as 499, not as a refusal."""
    caplog.set_level(logging.INFO, "openai_cpu_server.requests")
    async with observed_server("step_s=0.02") as server:
        async with opened(server.app, headers={"X-Priority": "batch"}) as socket:
            socket.ask("a", max_tokens=2000, ignore_eos=True)
            await socket.next()
            for message in ({"request_id": "a", "messages": MESSAGES}, {"request_id": 5}, {"cancel": "b"}):
                socket.send(message)
            refusals = [await socket.take(lambda message: message["request_id"] is None) for _ in range(3)]
            request_ids = [refusal["headers"]["x-request-id"] for refusal in refusals]
            assert [caplog.text.count(f"id={request_id} ") for request_id in request_ids] == [1, 1, 1]
        keys = ("origin", "method", "route", "priority", "status")
        assert sorted(tuple(labels[key] for key in keys) for labels in await counted_labels(server.http)) == [
            ("websocket", "POST", CHAT, "batch", "400"),
            ("websocket", "POST", CHAT, "batch", "499"),
            ("websocket", "POST", CHAT, "none", "101"),
            ("websocket", "POST", CHAT, "none", "404"),
        ]
        now = await page(server.http)
        assert now.sum(REQUESTS, origin="websocket", status="400") == 2
        assert now.sum("ocs_refusals_total", code="request_not_found") == 1
        assert now.sum("ocs_refusals_total") == 3


async def test_tokens_and_times_of_calls_and_steps_agree() -> None:
    async with observed_server() as server:
        usage = [(await chat(server.http, ignore_eos=True, n=n)).json()["usage"] for n in (1, 2, 3)]
        now = await page(server.http)
        output = sum(u["completion_tokens"] for u in usage)
        assert output == 8 * 6
        assert now.sum("ocs_output_tokens_total", priority="interactive") == output
        assert now.sum("ocs_prompt_tokens_total") == sum(u["prompt_tokens"] for u in usage)
        cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usage)
        assert now.sum("ocs_cached_tokens_total") == cached
        assert now.sum("ocs_sampled_tokens_total") == output
        assert now.sum("ocs_sequences_total", reason="length") == 6
        for name in ("queue", "request", "time_to_first_token"):
            assert now.sum(f"ocs_{name}_seconds_count", route=CHAT, priority="interactive") == 3
        for name in ("seconds", "predicted_seconds", "real_to_predicted_ratio", "tokens", "sequences"):
            assert now.sum(f"ocs_step_{name}_count") == now.sum("ocs_step_seconds_count") > 8
        assert now.sum("ocs_step_tokens_sum") == now.sum("ocs_computed_tokens_total")
        assert now.sum("ocs_computed_tokens_total") >= output - 6
        assert 0 < now.sum("ocs_inter_token_seconds_count") <= output - 6
        assert now.sum("ocs_inter_token_seconds_bucket", le="+Inf") == now.sum(
            "ocs_inter_token_seconds_count"
        )


async def test_unknown_methods_routes_and_models_add_no_series() -> None:
    async with observed_server() as server:
        await server.http.request("BREW", "/coffee")
        before = len((await page(server.http)).samples)
        for number in range(30):
            await server.http.request(f"BREW{number}", f"/coffee/{number}")
            await chat(server.http, model=f"model-{number}")
            await server.http.get(f"/v1/models/{number}", headers={"x-priority": str(number)})
        after = await page(server.http)
        assert after.sum(REQUESTS, method="other", route="other") == 31
        assert len(after.samples) - before < 12


async def test_the_cause_of_a_restart_is_a_label() -> None:
    async with observed_server("step_s=0.02") as server:
        assert server.engine.engine_pid is not None
        os.kill(server.engine.engine_pid, signal.SIGSEGV)
        await eventually(lambda: server.engine.status().restarts == 1)
        assert (await page(server.http)).series("ocs_engine_restarts_total") == [{"cause": "SIGSEGV"}]
        stats = (await server.http.get("/v1/stats")).json()
        assert stats["restarts"] == 1


async def test_rows_of_batches_are_counted_once() -> None:
    async with observed_server("step_s=0.01") as server:
        run_row = server.run_row
        body = {"messages": MESSAGES, "max_tokens": 4, "ignore_eos": True}
        await run_row(CHAT, json.dumps(body).encode(), "")
        await run_row(CHAT, b'{"messages": 1}', "")
        running = asyncio.create_task(run_row(CHAT, json.dumps({**body, "max_tokens": 4000}).encode(), ""))
        await eventually(lambda: bool(server.engine.requests()))
        assert (await page(server.http)).sum("ocs_batch_rows_running") == 1
        running.cancel()  # as when the server stops, after which the row runs again
        await asyncio.wait([running])
        now = await page(server.http)
        assert {labels["outcome"] for labels in now.series("ocs_batch_rows_total")} == {
            "answered",
            "failed",
            "put_off",
        }
        assert now.sum("ocs_batch_rows_running") == 0
        assert now.sum(REQUESTS, origin="batch", priority="batch") == now.sum(REQUESTS, origin="batch") == 2
        assert now.sum(REQUESTS, origin="batch", priority="batch", status="200") == 1
        assert now.sum("ocs_output_tokens_total", priority="batch") == 4


async def test_a_row_that_must_wait_for_the_engine_has_not_ended() -> None:
    application = create_api(served(new_engine()), OPTIONS)
    answer = await application.run_row(CHAT, json.dumps({"messages": MESSAGES}).encode(), "")
    assert (answer.status, answer.retry_after_s is not None) == (503, True)
    async with client(application.app) as http:
        now = await page(http)
    assert now.sum("ocs_batch_rows_total", outcome="put_off") == 1
    assert now.sum(REQUESTS, origin="batch") == now.sum("ocs_refusals_total") == 0


async def test_stats_are_the_same_in_json() -> None:
    async with observed_server("step_s=0.005") as server:
        for _ in range(4):
            await chat(server.http, ignore_eos=True)
        await chat(server.http, temperature=9)
        body = {"messages": MESSAGES, "ignore_eos": True, "stream": True}
        async with exchange(server.app, CHAT, body) as stream:
            await eventually(lambda: server.engine.status().kv_tokens_used > 0)
            stats = (await server.http.get("/v1/stats")).json()
            stream.disconnect()
        assert stats["object"] == "stats"
        assert (stats["total"]["processed"], stats["total"]["failed"]) == (4, 0)
        assert stats["recent"]["processed"] == 4
        for times in ("latency_ms", "ttft_ms", "inter_token_ms"):
            measured = stats["recent"][times]
            assert 0 < measured["p50"] <= measured["p90"] <= measured["p99"]
            assert measured["mean"] > 0
        assert stats["recent"]["latency_ms"]["mean"] > stats["recent"]["ttft_ms"]["mean"]
        assert stats["throughput"]["output_now"] > 0
        assert stats["throughput"]["output_since_start"] > 0
        assert stats["memory"]["running_requests"] == 1
        assert 0 < stats["memory"]["saved_share"] < 1
        assert stats["cache"]["prompt_tokens"] > 0
        assert stats["queue"]["interactive"] == {"running": 1, "waiting": 0}
        ended = (await server.http.get("/v1/stats")).json()
        assert (ended["total"]["processed"], ended["total"]["failed"]) == (5, 1)


async def test_an_engine_has_metrics_before_it_starts() -> None:
    async with client(api(new_engine())) as http:
        assert (await page(http)).sum("ocs_engine_ready") == 0
        stats = (await http.get("/v1/stats")).json()
        assert (stats["engine"], stats["memory"]) == ("loading", None)
        assert stats["recent"]["latency_ms"]["p50"] is None
