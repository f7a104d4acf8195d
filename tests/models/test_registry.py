"""Choice of a model by name, and the status of a server with several models."""

from __future__ import annotations

import msgspec
import pytest

from openai_cpu_server.contract.engine import EngineState, LastDeath
from openai_cpu_server.errors import EngineUnavailable, ModelNotFound, WrongModelKind
from openai_cpu_server.models.registry import Ability, ModelRegistry, choose_able
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.fake_engine import READY, FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.serving import embedding_model
from tests.fakes import FAKE_EMBEDDER, FAKE_INFO, FAKE_RERANKER
from tests.reading import model_read_here


def model(*names: str, engine: FakeEngine) -> ServedModel:
    return model_read_here(
        names=names,
        engine=engine,
        tokenizer=FakeTokenizer(),
        template=None,
        tool_format=TOOL_FORMATS["generic"],
    )


@pytest.fixture
def registry() -> ModelRegistry:
    small = msgspec.structs.replace(READY, restarts=1, last_death=death("SIGSEGV", 9.0), kv_tokens=100)
    large = msgspec.structs.replace(READY, state=EngineState.RESTARTING, reason="SIGKILL", restarts=2)
    large = msgspec.structs.replace(large, last_death=death("SIGKILL", 3.0), kv_tokens=1000)
    engines = FakeEngine(base_status=small), FakeEngine(base_status=large)
    return ModelRegistry([model("small", "s", engine=engines[0]), model("large", engine=engines[1])])


def death(cause: str, age_s: float) -> LastDeath:
    return LastDeath(cause=cause, message="it died", age_s=age_s)


@pytest.mark.parametrize(
    ("name", "allowed", "own_name", "found"),
    [
        (None, None, "small", "small"),
        ("s", None, "small", "s"),
        ("large", None, "large", "large"),
        (None, {"large", "other"}, "large", "large"),
        (None, {"s"}, "small", "s"),
    ],
)
def test_a_name_means_a_model(
    registry: ModelRegistry, name: str | None, allowed: set[str] | None, own_name: str, found: str
) -> None:
    chosen = registry.choose(name, allowed)
    assert (chosen.model.name, chosen.name) == (own_name, found)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("x", None), ("small", {"large"}), ("large:latest", {"x"}), (None, {"x"}), ("", None)],
)
def test_a_name_that_is_not_served_or_not_allowed_is_refused(
    registry: ModelRegistry, name: str | None, allowed: set[str] | None
) -> None:
    """The refusal does not name a model that the client has not named and may not use."""
    with pytest.raises(ModelNotFound) as error:
        registry.choose(name, allowed)
    if name is None:
        assert str(error.value) == "There is no model on this server for this key."
    else:
        assert str(error.value).startswith(f"The model '{name}' does not exist")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("qwen3.5:4b", "qwen3.5-4b"),
        ("llama3.2:3b", "llama-3.2-3b"),
        ("Gemma4:E2B", "gemma-4-e2b"),
        ("qwen3.5-4b:latest", "qwen3.5-4b"),
        ("twin:1b", None),
        ("qwen3.5:9b", None),
        ("qwen3.54b", None),
    ],
)
def test_a_tag_means_the_model_of_that_name_with_a_hyphen(name: str, found: str | None) -> None:
    names = ("qwen3.5-4b", "llama-3.2-3b", "gemma-4-e2b", "twin-1b", "tw-in-1b")
    registry = ModelRegistry([model(each, engine=FakeEngine()) for each in names])
    if found is None:
        with pytest.raises(ModelNotFound):
            registry.choose(name, None)
    else:
        assert registry.choose(name, None).model.name == found
        with pytest.raises(ModelNotFound):
            registry.choose(name, {"twin-1b"})


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        *[("smollm2:135m", True), ("smollm2:135M-instruct", True), ("smollm2:0.1b-instruct-q4_K_M", True)],
        *[("smollm2:360m", False), ("smollm2:1.7b", False), ("smollm2:135m-instruct-q8_0", False)],
    ],
)
def test_a_size_after_a_colon_must_be_that_of_the_model(name: str, is_found: bool) -> None:
    engine = FakeEngine(info=msgspec.structs.replace(FAKE_INFO, num_parameters=134_515_008))
    smollm2 = model("smollm2", engine=engine)
    smollm2.quantisation = "q4_k_m"
    registry = ModelRegistry([smollm2])
    assert registry.has(name) is is_found
    if is_found:
        assert registry.choose(name, {"smollm2"}).name == "smollm2"
    else:
        with pytest.raises(ModelNotFound):
            registry.choose(name, None)


def test_all_names_are_listed_in_order(registry: ModelRegistry) -> None:
    assert registry.names(None) == ("small", "s", "large")
    assert registry.names({"large", "s"}) == ("s", "large")


def test_a_server_has_the_state_of_its_worst_engine(registry: ModelRegistry) -> None:
    status = registry.status()
    assert (status.state, status.reason) == (EngineState.RESTARTING, "SIGKILL")
    assert (status.restarts, status.kv_tokens) == (3, 1100)
    assert status.last_death == death("SIGKILL", 3.0)
    assert status.running == {"interactive": 0, "batch": 0}


def test_the_status_of_a_single_engine_is_reported_unchanged() -> None:
    status = msgspec.structs.replace(READY, state=EngineState.LOADING, loaded=0.5, timed=0.25)
    assert ModelRegistry([model("a", engine=FakeEngine(base_status=status))]).status() == status


def test_a_model_that_cannot_generate_is_unavailable() -> None:
    status = msgspec.structs.replace(READY, state=EngineState.FAILED, reason="it died too often")
    for engine in (FakeEngine(base_status=status), FakeEngine(None)):
        with pytest.raises(EngineUnavailable):
            model("a", engine=engine).loaded()
    assert model("a", engine=FakeEngine()).loaded().path == "fake.gguf"


def test_nothing_new_is_begun_once_an_engine_is_ending(registry: ModelRegistry) -> None:
    registry.check_not_ending()
    ending = FakeEngine()
    ending.is_ending = True
    with pytest.raises(EngineUnavailable, match="shutting down"):
        ModelRegistry([*registry, model("ending", engine=ending)]).check_not_ending()


def test_any_name_may_mean_the_first_able_model() -> None:
    first, second = model("fake", engine=FakeEngine()), embedding_model(FakeEngine(FAKE_EMBEDDER), "embeds")
    models = ModelRegistry([first, second], takes_any_name=True)
    assert models.choose("gpt-4", None) == models.choose(None, None)
    assert models.choose("embeds", None).model is second
    assert choose_able(models, "text-embedding-3-small", None, Ability.EMBED).model is second
    with pytest.raises(ModelNotFound):
        ModelRegistry([first]).choose("gpt-4", None)


@pytest.fixture
def able() -> ModelRegistry:
    return ModelRegistry(
        [
            model("chat", engine=FakeEngine()),
            embedding_model(FakeEngine(FAKE_RERANKER), "ranks"),
            embedding_model(FakeEngine(FAKE_EMBEDDER), "embeds", "e"),
        ]
    )


@pytest.mark.parametrize(
    ("name", "allowed", "ability", "found"),
    [
        (None, None, Ability.GENERATE, "chat"),
        (None, None, Ability.EMBED, "embeds"),
        (None, None, Ability.RERANK, "ranks"),
        (None, {"chat", "e"}, Ability.RERANK, "e"),
        ("embeds", None, Ability.RERANK, "embeds"),
    ],
)
def test_without_a_name_the_first_able_model_is_chosen(
    able: ModelRegistry, name: str | None, allowed: set[str] | None, ability: Ability, found: str
) -> None:
    assert choose_able(able, name, allowed, ability).name == found


@pytest.mark.parametrize(
    ("name", "allowed", "ability", "message"),
    [
        ("chat", None, Ability.EMBED, "'chat' cannot embed. Models that can: 'embeds', 'e'."),
        ("chat", {"chat"}, Ability.EMBED, "'chat' cannot embed. No model of this server can."),
        (None, {"ranks"}, Ability.GENERATE, "'ranks' cannot generate text. No model of this server can."),
        ("ranks", None, Ability.EMBED, "'ranks' cannot embed. Models that can: 'embeds', 'e'."),
    ],
)
def test_the_refusal_of_a_model_names_able_ones_that_the_caller_may_use(
    able: ModelRegistry, name: str | None, allowed: set[str] | None, ability: Ability, message: str
) -> None:
    with pytest.raises(WrongModelKind) as refusal:
        choose_able(able, name, allowed, ability)
    assert str(refusal.value) == f"The model {message}"
    with pytest.raises(ModelNotFound):
        choose_able(able, "embeds", {"chat"}, Ability.EMBED)
