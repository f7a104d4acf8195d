"""Agents and typed answers of other frameworks on the real server, each by its own way of asking."""

from __future__ import annotations

from typing import Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, Field

from tests.lazy import Lazy
from tests.server_process import ServerProcess

langchain_openai, messages = Lazy("langchain_openai"), Lazy("langchain_core.messages")
graphs, prebuilt = Lazy("langgraph.graph"), Lazy("langgraph.prebuilt")
workflow, llms = Lazy("llama_index.core.agent.workflow"), Lazy("llama_index.llms.openai_like")
pydantic_ai, models = Lazy("pydantic_ai"), Lazy("pydantic_ai.models.openai")
providers = Lazy("pydantic_ai.providers.openai")

pytestmark = [pytest.mark.native, pytest.mark.thorough, pytest.mark.anyio]


class Level(BaseModel):
    is_high: bool
    metres: int = Field(ge=0, le=9)


def water(place: Literal["Bonn", "Cologne"]) -> str:
    """The level of the water at a place."""
    return "5 metres"


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def langchain(request: pytest.FixtureRequest, server: ServerProcess) -> langchain_openai.ChatOpenAI:
    return langchain_openai.ChatOpenAI(
        base_url=server.url + "/v1",
        api_key="none",
        model="tiny",
        temperature=0,
        max_tokens=60,
        use_responses_api=request.param,
    )


def test_langchain_gets_an_object_by_either_api(langchain: langchain_openai.ChatOpenAI) -> None:
    form = langchain.with_structured_output(Level, method="json_schema")
    assert isinstance(form.invoke("How high is the water?"), Level)


def test_langchain_streams_by_either_api(langchain: langchain_openai.ChatOpenAI) -> None:
    whole = langchain.invoke("hello").text
    assert "".join(chunk.text for chunk in langchain.stream("hello")) == whole


def test_a_graph_calls_a_tool_and_tells_its_result(langchain: langchain_openai.ChatOpenAI) -> None:
    """The first turn must call. `strict`: a model of random weights would add arguments without end."""
    calling = langchain.bind_tools([water], tool_choice="any", parallel_tool_calls=False, strict=True)
    graph = graphs.StateGraph(graphs.MessagesState)
    graph.add_node("call", lambda state: {"messages": [calling.invoke(state["messages"])]})
    graph.add_node("tools", prebuilt.ToolNode([water]))
    graph.add_node("tell", lambda state: {"messages": [langchain.invoke(state["messages"])]})
    for one, other in (("__start__", "call"), ("call", "tools"), ("tools", "tell"), ("tell", "__end__")):
        graph.add_edge(one, other)
    question = messages.HumanMessage("How high is the water in Bonn?")
    said = graph.compile().invoke({"messages": [question]})["messages"]
    assert [each.type for each in said] == ["human", "ai", "tool", "ai"]
    assert [call["name"] for call in said[1].tool_calls] == ["water"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own
async def test_llama_index_calls_a_tool_and_tells_its_result(server: ServerProcess) -> None:
    called: list[str] = []

    def high_water() -> str:
        """Whether the water is high."""
        called.append("high")
        return "yes"

    async with httpx.AsyncClient() as http:
        llm = llms.OpenAILike(
            api_base=server.url + "/v1",
            api_key="none",
            model="tiny",
            is_chat_model=True,
            is_function_calling_model=True,
            temperature=0,
            max_tokens=60,
            async_http_client=http,
        )
        agent = workflow.FunctionAgent(
            tools=[high_water], llm=llm, initial_tool_choice="high_water", timeout=60
        )
        answer = await agent.run("Is the water high?", max_iterations=3)
    assert called == ["high"]
    assert [one.tool_name for one in answer.tool_calls] == ["high_water"]
    assert answer.response.content


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
async def test_pydantic_ai_gets_an_object(kind: str, server: ServerProcess) -> None:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        model = getattr(models, kind)("tiny", provider=providers.OpenAIProvider(openai_client=client))
        agent = pydantic_ai.Agent(model, output_type=Level)
        answer = await agent.run("How high is it?", model_settings={"max_tokens": 60, "temperature": 0})
    assert isinstance(answer.output, Level)
