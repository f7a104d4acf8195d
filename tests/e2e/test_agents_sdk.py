"""The OpenAI Agents SDK on the real server, by both of its models: tools, a handoff, a structured answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import openai
import pytest
from pydantic import BaseModel, Field

from tests.lazy import Lazy
from tests.server_process import ServerProcess

if TYPE_CHECKING:
    import agents
else:
    agents = Lazy("agents")

pytestmark = [pytest.mark.native, pytest.mark.thorough, pytest.mark.anyio]
SHORT: dict[str, Any] = {"max_tokens": 60, "temperature": 0}


class Level(BaseModel):
    is_high: bool
    metres: int = Field(ge=0, le=9)


@pytest.fixture(params=["responses", "chat"])
async def model(request: pytest.FixtureRequest, server: ServerProcess) -> AsyncIterator[agents.Model]:
    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        if request.param == "responses":
            yield agents.OpenAIResponsesModel("tiny", client)
        else:
            yield agents.OpenAIChatCompletionsModel("tiny", client)


async def test_an_agent_calls_its_two_tools(model: agents.Model) -> None:
    called: list[str] = []

    @agents.function_tool
    def high_water() -> str:
        """Whether the water is high."""
        called.append("high")
        return "yes"

    @agents.function_tool
    def low_water() -> str:
        """Whether the water is low."""
        called.append("low")
        return "no"

    for name, choice in (("high", "high_water"), ("low", "low_water")):
        settings = agents.ModelSettings(max_tokens=60, temperature=0, tool_choice=choice)
        agent = agents.Agent(
            name="guard",
            instructions="Look.",
            tools=[high_water, low_water],
            model=model,
            model_settings=settings,
        )
        result = await agents.Runner.run(agent, "Is the water high?", max_turns=3)
        assert called[-1] == name
        kinds = [item.type for item in result.new_items]
        assert kinds[:2] == ["tool_call_item", "tool_call_output_item"]
        assert kinds[-1] == "message_output_item"


async def test_an_agent_hands_over_to_one_that_answers_in_a_form(model: agents.Model) -> None:
    measurer = agents.Agent(
        name="measurer",
        instructions="Say how high.",
        output_type=Level,
        model=model,
        model_settings=agents.ModelSettings(**SHORT),
    )
    settings = agents.ModelSettings(max_tokens=60, temperature=0, tool_choice="required")
    desk = agents.Agent(name="desk", handoffs=[measurer], model=model, model_settings=settings)
    result = await agents.Runner.run(desk, "How high is the water?", max_turns=3)
    assert result.last_agent is measurer
    assert isinstance(result.final_output, Level)


async def test_an_agent_streams(model: agents.Model) -> None:
    agent = agents.Agent(
        name="guard", output_type=Level, model=model, model_settings=agents.ModelSettings(**SHORT)
    )
    result = agents.Runner.run_streamed(agent, "Is the water high?")
    kinds = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    assert isinstance(result.final_output, Level)
