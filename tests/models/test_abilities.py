"""Which model a request means that needs a certain ability."""

from __future__ import annotations

import pytest

from openai_cpu_server.errors import ModelNotFound, WrongModelKind
from openai_cpu_server.models.registry import Ability, ModelRegistry, choose_able
from tests.api.fake_engine import FakeEngine
from tests.api.serving import embedding_model
from tests.fakes import FAKE_EMBEDDER, FAKE_RERANKER
from tests.models.test_registry import model

pytestmark = pytest.mark.anyio


@pytest.fixture
async def models() -> ModelRegistry:
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
async def test_the_first_that_is_able_is_meant_where_no_name_is_given(
    models: ModelRegistry, name: str | None, allowed: set[str] | None, ability: Ability, found: str
) -> None:
    assert choose_able(models, name, allowed, ability).name == found


@pytest.mark.parametrize(
    ("name", "allowed", "ability", "said"),
    [
        ("chat", None, Ability.EMBED, "'chat' cannot embed. On this server can: 'embeds', 'e'."),
        ("chat", {"chat"}, Ability.EMBED, "'chat' cannot embed. No model of this server can."),
        (None, {"ranks"}, Ability.GENERATE, "'ranks' cannot generate text. No model of this server can."),
        ("ranks", None, Ability.EMBED, "'ranks' cannot embed. On this server can: 'embeds', 'e'."),
    ],
)
async def test_others_are_refused_with_a_hint_to_those_that_the_caller_may_use(
    models: ModelRegistry, name: str | None, allowed: set[str] | None, ability: Ability, said: str
) -> None:
    with pytest.raises(WrongModelKind) as refused:
        choose_able(models, name, allowed, ability)
    assert str(refused.value) == f"The model {said}"
    with pytest.raises(ModelNotFound):
        choose_able(models, "embeds", {"chat"}, Ability.EMBED)
