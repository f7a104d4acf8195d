"""Metrics from `/metrics` after one event of each kind, for all labels."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from manual.table import table
from openai_cpu_server.contract.engine import EngineState, EngineStatus
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.offload import DevicePlacement
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.observe.ended import AnswerUse, Distribution, EndedCall, EndedRequest, RequestOrigin
from openai_cpu_server.observe.gauges import EngineGauges, GatewayGauges
from openai_cpu_server.observe.telemetry import Telemetry


def metric_table() -> str:
    rows = map(_row, text_string_to_metric_families(_page()))
    return table(("Metric", "Type", "Labels", "Meaning"), rows)


def _row(family: Metric) -> tuple[str, str, str, str]:
    name = family.name + "_total" * (family.type == "counter")
    labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
    return f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation


def _page() -> str:
    telemetry = Telemetry.new(model="demo")
    telemetry.metrics.add(EngineGauges(lambda: [("demo", _IdleEngine())]))
    telemetry.metrics.add(GatewayGauges(lambda: [("demo", _IdleEngine())]))
    telemetry.ended(_failed_request())
    telemetry.metrics.count("batch_rows", "put_off")
    telemetry.metrics.count("engine_restarts", "hang")
    telemetry.metrics.reader_died("SIGSEGV")
    telemetry.metrics.model_loaded("demo", 1.0)
    telemetry.metrics.model_unloaded("demo", "idle")
    return telemetry.metrics.page().decode()


class _IdleEngine:
    info = None
    state = EngineState.LOADING

    def status(self) -> EngineStatus:
        nobody = {priority.label: 0 for priority in Priority}
        return EngineStatus(
            state=EngineState.LOADING,
            reason=None,
            loaded=0.0,
            timed=None,
            running=nobody,
            waiting=nobody,
            kv_tokens=0,
            kv_tokens_used=0,
            restarts=0,
            last_death=None,
            rss_bytes=0,
            placement=DevicePlacement(
                device=None,
                layers=0,
                num_layers=1,
                cpu_expert_layers=0,
                weights_bytes=0,
                cells_bytes=0,
                compute_bytes=0,
            ),
        )

    def kv_stats(self) -> None:
        return None

    def adapters(self) -> tuple[str, ...]:
        return ("french",)

    def requests(self) -> tuple[()]:
        return ()


def _failed_request() -> EndedRequest:
    return EndedRequest(
        id="req_1",
        origin=RequestOrigin.HTTP,
        method="POST",
        route="/v1/completions",
        priority="batch",
        status=500,
        code="generation_failed",
        answer=AnswerUse.MISS,
        started_s=0.0,
        ended_s=1.0,
        call=_call(),
    )


def _call() -> EndedCall:
    gaps = Distribution()
    gaps.add(0.1)
    return EndedCall(
        model="m",
        figures=Figures(
            prompt_tokens=1,
            output_tokens=2,
            queue_ms=100.0,
            prefill_ms=100.0,
            generation_ms=100.0,
            latency_ms=300.0,
            tokens_per_second=10.0,
        ),
        finish_reasons=("stop",),
        submitted_s=0.0,
        ttft_s=0.2,
        gaps=gaps,
    )
