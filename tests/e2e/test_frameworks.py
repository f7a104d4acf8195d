"""LangChain, LlamaIndex, Pydantic AI and OpenAI's Agents SDK with only the base URL changed.

Answers, streams, agents and typed answers, by the routes and with the extra fields that each framework uses.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx
import pytest
from pydantic import BaseModel, Field

from tests.e2e.serving import async_sdk
from tests.lazy import Lazy
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S

langchain_openai, messages = Lazy("langchain_openai"), Lazy("langchain_core.messages")
graphs, prebuilt = Lazy("langgraph.graph"), Lazy("langgraph.prebuilt")
types, llms = Lazy("llama_index.core.base.llms.types"), Lazy("llama_index.llms.openai_like")
workflow = Lazy("llama_index.core.agent.workflow")
pydantic_ai, models = Lazy("pydantic_ai"), Lazy("pydantic_ai.models.openai")
providers, agents = Lazy("pydantic_ai.providers.openai"), Lazy("agents")

pytestmark = [pytest.mark.native, pytest.mark.anyio]
SHORT: Any = {"max_tokens": 60, "temperature": 0}


class Level(BaseModel):
    is_high: bool
    metres: int = Field(ge=0, le=9)


def water(place: Literal["Bonn", "Cologne"]) -> str:
    """The level of the water at a place."""
    return "5 metres"


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def langchain(request: pytest.FixtureRequest, server: ServerProcess) -> langchain_openai.ChatOpenAI:
    options = {"model": "tiny", **SHORT, "use_responses_api": request.param}
    return langchain_openai.ChatOpenAI(base_url=server.url + "/v1", api_key="none", **options)


@pytest.mark.thorough
def test_a_graph_calls_a_tool_and_answers_from_its_result(langchain: langchain_openai.ChatOpenAI) -> None:
    """The first turn must call. Without `strict`, a model with random weights adds arguments without end."""
    caller = langchain.bind_tools([water], tool_choice="any", parallel_tool_calls=False, strict=True)
    graph = graphs.StateGraph(graphs.MessagesState)
    graph.add_node("call", lambda state: {"messages": [caller.invoke(state["messages"])]})
    graph.add_node("tools", prebuilt.ToolNode([water]))
    graph.add_node("answer", lambda state: {"messages": [langchain.invoke(state["messages"])]})
    for source, target in itertools.pairwise(("__start__", "call", "tools", "answer", "__end__")):
        graph.add_edge(source, target)
    question = messages.HumanMessage("How high is the water in Bonn?")
    turns = graph.compile().invoke({"messages": [question]})["messages"]
    assert [turn.type for turn in turns] == ["human", "ai", "tool", "ai"]
    assert [call["name"] for call in turns[1].tool_calls] == ["water"]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within LlamaIndex
async def test_llama_index_calls_a_tool_and_answers_from_its_result(server: ServerProcess) -> None:
    called: list[str] = []

    def high_water() -> str:
        """Whether the water is high."""
        called.append("high")
        return "yes"

    async with httpx.AsyncClient(timeout=DEADLINE_S) as http:
        options = {"model": "tiny", "is_chat_model": True, "is_function_calling_model": True, **SHORT}
        llm = llms.OpenAILike(api_base=server.url + "/v1", api_key="none", async_http_client=http, **options)
        agent = workflow.FunctionAgent(
            tools=[high_water], llm=llm, initial_tool_choice="high_water", timeout=DEADLINE_S
        )
        answer = await agent.run("Is the water high?", max_iterations=3)
    assert called == ["high"]
    assert [call.tool_name for call in answer.tool_calls] == ["high_water"]
    assert answer.response.content


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
async def test_pydantic_ai_gets_an_object(kind: str, server: ServerProcess) -> None:
    async with async_sdk(server) as client:
        model = getattr(models, kind)("tiny", provider=providers.OpenAIProvider(openai_client=client))
        agent = pydantic_ai.Agent(model, output_type=Level)
        answer = await agent.run("How high is it?", model_settings=SHORT)
    assert isinstance(answer.output, Level)


@pytest.fixture(params=["responses", "chat"])
async def agents_model(request: pytest.FixtureRequest, server: ServerProcess) -> AsyncIterator[agents.Model]:
    agents.set_tracing_disabled(True)
    async with async_sdk(server) as client:
        if request.param == "responses":
            yield agents.OpenAIResponsesModel("tiny", client)
        else:
            yield agents.OpenAIChatCompletionsModel("tiny", client)


@pytest.mark.thorough
async def test_an_agent_calls_the_tool_that_it_must(agents_model: agents.Model) -> None:
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

    settings = agents.ModelSettings(**SHORT, tool_choice="low_water")
    options: Any = {"tools": [high_water, low_water], "model": agents_model, "model_settings": settings}
    agent = agents.Agent(name="guard", instructions="Look.", **options)
    result = await agents.Runner.run(agent, "Is the water high?", max_turns=3)
    assert called == ["low"]
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"]
    assert kinds[-1] == "message_output_item"
