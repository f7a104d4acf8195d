"""One loop with two parallel calls in a framework for agents: `FRAMEWORK URL whole|streamed`.

Writes the tools that ran and the last answer as JSON. The interpreter has the frameworks, and nothing of this
project.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

ran: list[str] = []
QUESTION = "How is the weather in Rome, and what time is it?"
os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "OPENAI_API_KEY": "none"}
os.environ |= {"CREWAI_TRACING_ENABLED": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1"}


def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Name of the city.
    """
    ran.append(f"weather {city}")
    return "sunny"


def now() -> str:
    """The time of the day."""
    ran.append("now")
    return "half past noon"


def anthropic_runner(url: str, is_streamed: bool) -> str:
    import anthropic
    from anthropic import beta_tool

    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    tools = [beta_tool(weather), beta_tool(now)]
    messages = [{"role": "user", "content": QUESTION}]
    runner = client.beta.messages.tool_runner(
        model="fake", max_tokens=200, tools=tools, messages=messages, stream=is_streamed
    )
    last = None
    for each in runner:
        if is_streamed:
            for _ in each:
                pass
            last = each.get_final_message()
        else:
            last = each
    assert last is not None
    return "".join(block.text for block in last.content if block.type == "text")


def smolagents(url: str, is_streamed: bool, kind: str) -> str:
    from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

    model = OpenAIServerModel("fake", api_base=url + "/v1", api_key="none")
    agent_class = CodeAgent if kind == "code" else ToolCallingAgent
    agent = agent_class(tools=[tool(weather), tool(now)], model=model, verbosity_level=0, max_steps=4)
    if is_streamed:
        agent.stream_outputs = True
        *_, last = agent.run(QUESTION, stream=True)
        return str(getattr(last, "output", last))
    return str(agent.run(QUESTION))


async def openai_agents(url: str, is_streamed: bool) -> str:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    model = OpenAIChatCompletionsModel("fake", client)
    agent = Agent("a", model=model, tools=[function_tool(weather), function_tool(now)])
    if not is_streamed:
        return str((await Runner.run(agent, QUESTION)).final_output)
    result = Runner.run_streamed(agent, QUESTION)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)


async def pydantic_ai(url: str, is_streamed: bool) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("fake", provider=OpenAIProvider(base_url=url + "/v1", api_key="none"))
    agent = Agent(model, tools=[weather, now])
    if not is_streamed:
        return str((await agent.run(QUESTION)).output)
    async with agent.run_stream(QUESTION) as result:
        return str(await result.get_output())


async def langgraph(url: str, is_streamed: bool) -> str:
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    model = ChatOpenAI(model="fake", base_url=url + "/v1", api_key="none", streaming=is_streamed)
    agent = create_react_agent(model, [weather, now])
    asked = {"messages": [("user", QUESTION)]}
    if not is_streamed:
        return str((await agent.ainvoke(asked))["messages"][-1].content)
    text = ""
    async for message, facts in agent.astream(asked, stream_mode="messages"):
        if facts["langgraph_node"] == "agent":
            text += str(message.content)
    return text


def crewai(url: str, is_streamed: bool) -> str:
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool

    llm = LLM(model="openai/fake", base_url=url + "/v1", api_key="none", stream=is_streamed)
    tools = [tool(weather), tool(now)]
    agent = Agent(role="guide", goal="answer", backstory="a guide", llm=llm, tools=tools, verbose=False)
    task = Task(description=QUESTION, expected_output="one sentence", agent=agent)
    return str(Crew(agents=[agent], tasks=[task], verbose=False, tracing=False).kickoff())


FRAMEWORKS = {
    "anthropic": anthropic_runner,
    "smolagents-tools": lambda url, is_streamed: smolagents(url, is_streamed, "tools"),
    "smolagents-code": lambda url, is_streamed: smolagents(url, is_streamed, "code"),
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
    "langgraph": langgraph,
    "crewai": crewai,
}

if __name__ == "__main__":
    name, url, way = sys.argv[1:]
    answer = FRAMEWORKS[name](url, way == "streamed")
    if asyncio.iscoroutine(answer):
        answer = asyncio.run(answer)
    sys.stdout.write("\n" + json.dumps({"ran": ran, "answer": answer}) + "\n")
