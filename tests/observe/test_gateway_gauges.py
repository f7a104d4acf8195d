"""Gauges for gateways, which read the first series of each name, or the sum of all."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from openai_cpu_server.contract.engine import Engine, EngineState, LiveRequest, RequestState
from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.observe.gauges import GatewayGauges
from openai_cpu_server.observe.metrics import metrics_text
from tests.api.fake_engine import READY, FakeEngine
from tests.api.talking import chat
from tests.api.test_adapters import adapter
from tests.api.watching import Page, observed_server, page
from tests.fakes import FAKE_EMBEDDER, FAKE_INFO, FAKE_LIVE
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

USAGE = "vllm:kv_cache_usage_perc"


class ReportingEngine(FakeEngine):
    """An engine whose status a test sets."""

    def __init__(
        self,
        info: ModelInfo | None = FAKE_INFO,
        *,
        running: tuple[int, int] = (0, 0),
        waiting: tuple[int, int] = (0, 0),
        used_blocks: int | None = None,
        live: tuple[LiveRequest, ...] = (),
        state: EngineState = EngineState.READY,
    ) -> None:
        counts = [dict(zip(("interactive", "batch"), pair, strict=True)) for pair in (running, waiting)]
        status = msgspec.structs.replace(READY, running=counts[0], waiting=counts[1], state=state)
        super().__init__(info, status)
        self._used_blocks = used_blocks
        self._requests = live

    def status(self):  # type: ignore[no-untyped-def]
        return self.base_status

    def requests(self) -> list[LiveRequest]:
        return list(self._requests)

    def kv_stats(self) -> KVStats | None:
        if self._used_blocks is None:
            return None
        nothing = dict.fromkeys(KVStats.__struct_fields__, 0)
        return KVStats(**{**nothing, "pool_blocks_used": self._used_blocks})


def series(*engines: tuple[str, Engine]) -> dict[str, Sample]:
    """Return the series by name, of which there is one each."""
    text = metrics_text(GatewayGauges(lambda: engines, clock=lambda: 1000.0)).decode()
    families = list(text_string_to_metric_families(text))
    assert {family.type for family in families} == {"gauge"}
    samples = [sample for family in families for sample in family.samples]
    assert len({sample.name for sample in samples}) == len(samples), "a gateway reads the first one"
    return {sample.name: sample for sample in samples}


def test_one_model_is_reported_as_by_vllm() -> None:
    found = series(("demo", ReportingEngine(running=(2, 3), waiting=(4, 50), used_blocks=64)))
    labels = {"engine": "0", "model_name": "demo"}
    for name, value in (("num_requests_running", 5), ("num_requests_waiting", 4)):
        sample = found[f"vllm:{name}"]
        assert (sample.labels, sample.value) == (labels, value)
    assert (found[USAGE].labels, found[USAGE].value) == (labels, 0.25)
    config = found["vllm:cache_config_info"]
    facts = {"block_size": "16", "num_gpu_blocks": "256", "kv_cache_size_tokens": "4096"}
    assert config.value == 1
    assert config.labels == {**facts, "engine": "0", "cache_dtype": "f16"}
    assert len(found) == 4, "without adapters their series is absent"


def test_several_models_are_one_server() -> None:
    """The usage leaves out models without a pool, such as unloaded ones."""
    found = series(
        ("a", ReportingEngine(waiting=(1, 1), used_blocks=256)),
        ("b", ReportingEngine(waiting=(2, 2), used_blocks=0)),
        ("vectors", ReportingEngine(FAKE_EMBEDDER, waiting=(4, 0))),
        ("asleep", ReportingEngine(state=EngineState.ASLEEP)),
    )
    assert found["vllm:num_requests_waiting"].value == 7
    assert found["vllm:num_requests_waiting"].labels["model_name"] == "a"
    assert found[USAGE].value == 0.5
    assert found["vllm:cache_config_info"].labels["num_gpu_blocks"] == "512"


@pytest.mark.parametrize("info", [None, FAKE_EMBEDDER])
def test_a_server_without_cells_reports_zero_blocks(info: ModelInfo | None) -> None:
    found = series(("m", ReportingEngine(info, state=EngineState.LOADING)))
    assert found[USAGE].value == 0
    assert found["vllm:cache_config_info"].labels["num_gpu_blocks"] == "0"


def test_a_sleeping_model_reports_its_future_pool() -> None:
    found = series(("m", ReportingEngine(state=EngineState.ASLEEP)))
    assert found["vllm:cache_config_info"].labels["num_gpu_blocks"] == "256"


def live(name: str | None, state: RequestState, priority: Priority = Priority.INTERACTIVE) -> LiveRequest:
    return msgspec.structs.replace(FAKE_LIVE, priority=priority, state=state, adapter=name)


async def test_adapters_are_reported_by_the_names_of_requests() -> None:
    runs, waits, batch = RequestState.RUNNING, RequestState.WAITING, Priority.BATCH
    requests = (live("fr", runs), live("fr", runs), live("de", runs, batch), live(None, runs))
    engine = ReportingEngine(live=(*requests, live("it", waits), live("es", waits, batch)))
    assert "vllm:lora_requests_info" not in series(("m", engine))
    await engine.load_adapter(adapter("fr"))
    info = series(("m", engine), ("other", ReportingEngine()))["vllm:lora_requests_info"]
    assert info.value == 1000.0
    assert info.labels == {
        "max_lora": "64",
        "running_lora_adapters": "m:de,m:fr",
        "waiting_lora_adapters": "m:it",
    }


async def test_both_pages_over_http_have_the_same_figures() -> None:
    async with observed_server("step_s=0.02") as server:
        request_task = asyncio.create_task(chat(server.http, ignore_eos=True, max_tokens=2000))
        await eventually(lambda: server.engine.status().kv_tokens_used > 0)
        whole, lean = await page(server.http), Page((await server.http.get("/metrics/gateway")).text)
        assert lean.sum("vllm:num_requests_running") == whole.sum("vllm:num_requests_running") == 1
        assert whole.sum("ocs_kv_pool_blocks") == 256
        assert {sample.name.partition(":")[0] for sample in lean.samples} == {"vllm"}
        request_task.cancel()
