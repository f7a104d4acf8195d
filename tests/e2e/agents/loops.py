"""Agent loop with two parallel tool calls in one framework: `FRAMEWORK URL whole|streamed`.

Writes the calls and the final answer as JSON. The interpreter has the frameworks, but not this project.
"""

from __future__ import annotations

import json
import os
import sys

calls: list[str] = []
QUESTION = "How is the weather in Rome, and what time is it?"
os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "OPENAI_API_KEY": "none"}
os.environ |= {"CREWAI_TRACING_ENABLED": "false"}


def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Name of the city.
    """
    calls.append(f"weather {city}")
    return "sunny"


def now() -> str:
    """The time of the day."""
    calls.append("now")
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
    for item in runner:
        if is_streamed:
            for _ in item:
                pass
            last = item.get_final_message()
        else:
            last = item
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
    "crewai": crewai,
}

if __name__ == "__main__":
    name, url, mode = sys.argv[1:]
    answer = FRAMEWORKS[name](url, mode == "streamed")
    sys.stdout.write("\n" + json.dumps({"calls": calls, "answer": answer}) + "\n")
