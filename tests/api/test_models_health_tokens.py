"""Routes that generate nothing, apart from the cases in `exchanges/`, and servers of several models."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.offload import Device, DevicePlacement
from openai_cpu_server.models.registry import ModelRegistry
from tests.api.asgi import exchange
from tests.api.fake_engine import READY, FakeEngine
from tests.api.serving import OPTIONS, api, client, new_engine, num_live
from tests.api.talking import chat, complete, error_of
from tests.models.test_registry import model
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_codex_gets_its_catalog(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models?client_version=0.171.0")).json()
    assert listed["data"] == (await http.get("/v1/models")).json()["data"]
    first = listed["models"][0]
    assert [model["slug"] for model in listed["models"]] == [card["id"] for card in listed["data"]]
    assert (first["apply_patch_tool_type"], first["context_window"]) == ("freeform", 4096)
    assert first["truncation_policy"] == {"mode": "tokens", "limit": 1024}
    assert first["base_instructions"]
    # Without these fields Codex 0.171 reads no catalog.
    assert first.keys() >= {
        "supported_reasoning_levels",
        "support_verbosity",
        "experimental_supported_tools",
        "priority",
        "supported_in_api",
        "visibility",
        "shell_type",
    }


async def test_a_loading_server_is_alive_but_not_ready() -> None:
    engine = new_engine()  # never started
    async with client(api(engine)) as http:
        health, ready = await http.get("/health"), await http.get("/ready")
        answers = [await chat(http), await complete(http)]
        models, tokens = await http.get("/v1/models"), await http.post("/tokenize", json={"content": "a"})
    assert (health.status_code, health.json()["status"]) == (200, "loading")
    assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
    assert ready.json()["error"]["code"] == "engine_unavailable"
    for answer in answers:
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert error_of(answer)["message"] == "The model is loading (0%)."
    assert models.json()["data"][0]["meta"] is None
    assert tokens.json() == {"tokens": [99], "count": 1, "max_model_len": None}


async def test_an_error_has_the_progress_of_the_measurement_of_costs() -> None:
    measuring = msgspec.structs.replace(READY, state=EngineState.LOADING, loaded=1.0, timed=0.4)
    async with client(api(FakeEngine(None, measuring))) as http:
        answer = await chat(http)
    assert answer.status_code == 503
    assert error_of(answer)["message"].endswith("is being measured (40%).")


GPU = Device(
    name="Vulkan0", backend="Vulkan", description="Some GPU", kind="gpu", free_bytes=8000, total_bytes=8192
)
PARTLY = DevicePlacement(
    device=GPU,
    layers=9,
    num_layers=33,
    cpu_expert_layers=4,
    weights_bytes=500,
    cells_bytes=0,
    compute_bytes=30,
    cells_on_cpu=True,
)
ABSENT = DevicePlacement.nowhere("there is no device")
DEVICE = 'device="Vulkan0",model="fake"'


@pytest.mark.parametrize(
    ("role", "placement", "lines"),
    [
        ("model", PARTLY, [f'bytes{{{DEVICE},part="weights",role="model"}} 500.0']),
        ("model", PARTLY, [f'layers{{{DEVICE},role="model"}} 9.0']),
        ("draft", PARTLY, [f'layers{{{DEVICE},role="draft"}} 9.0']),
        ("model", ABSENT, ['layers{device="",model="fake",role="model"} 0.0']),
        ("model", None, []),
    ],
)  # fmt: skip
async def test_a_placement_is_in_health_and_metrics(
    role: str, placement: DevicePlacement | None, lines: list[str]
) -> None:
    field = {"model": "placement", "draft": "draft_placement"}[role]
    status = msgspec.structs.replace(READY, **{field: placement})
    async with client(api(FakeEngine(base_status=status))) as http:
        health = (await http.get("/health")).json()["models"]["fake"]
        metrics = (await http.get("/metrics")).text.splitlines()
    assert health[field] == msgspec.to_builtins(placement)
    assert {f"ocs_device_{line}" for line in lines} <= set(metrics)
    roles = {role} if placement else set()
    assert {name for name in ("model", "draft") if any(f'role="{name}"' in line for line in metrics)} == roles


def test_a_placement_is_described_in_words() -> None:
    assert str(PARTLY).startswith("9 of 33 layers on Vulkan0, experts of 4 on the CPU, cells on the CPU (")
    assert str(ABSENT) == "all on the CPU: there is no device"


# -- several models: a request goes to the engine of the model in its body -----------------------------------


class Pair:
    """Two models, of which `small` is the default."""

    def __init__(self) -> None:
        self.small, self.large = FakeEngine(), FakeEngine(None)
        models = [model("small", engine=self.small), model("large", engine=self.large)]
        self.app = create_api(ModelRegistry(models), OPTIONS).app


async def test_the_model_in_the_body_selects_the_engine() -> None:
    """The large model is not loaded."""
    pair = Pair()
    async with client(pair.app) as http:
        by_default, by_name = await complete(http), await complete(http, model="small")
        unloaded, unknown = await complete(http, model="large"), await complete(http, model="x")
        cards = (await http.get("/v1/models")).json()["data"]
    assert [(card["id"], card["meta"] is None) for card in cards] == [("small", False), ("large", True)]
    assert by_default.json()["model"] == by_name.json()["model"] == "small"
    assert (unloaded.status_code, error_of(unloaded)["code"]) == (503, "engine_unavailable")
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "model_not_found")


async def test_a_wrong_body_is_refused_even_if_its_model_is_not_loaded() -> None:
    async with client(Pair().app) as http:
        refused = await chat(http, model="large", temperature=9)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "temperature")


async def test_requests_of_all_models_are_listed_and_ended() -> None:
    pair = Pair()
    pair.large.info = pair.small.info
    body = {"prompt": "a", "ignore_eos": True}
    pair.small.goes_on.clear()
    pair.large.goes_on.clear()
    path = "/v1/completions"
    async with (
        exchange(pair.app, path, {**body, "model": "small"}) as first,
        exchange(pair.app, path, {**body, "model": "large"}) as second,
        client(pair.app) as http,
    ):
        await eventually(lambda: num_live(pair.small) == num_live(pair.large) == 1)
        assert (await http.get("/health")).json()["queue"]["interactive"]["running"] == 2
        for card in await _listed(http):
            assert (await http.delete(f"/v1/requests/{card['id']}")).status_code == 200
        assert await _listed(http) == []
        for stream in (first, second):
            assert b"request_cancelled" in (await stream.chunk() or b"")


async def _listed(http: httpx.AsyncClient) -> list[dict[str, object]]:
    return list((await http.get("/v1/requests")).json()["data"])
