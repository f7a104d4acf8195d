"""Options of MCP servers, `[mcp.NAME]`, and limits of their calls."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, model_validator
from pydantic_settings import CliSuppress

from openai_cpu_server.config.folders import expanded_path
from openai_cpu_server.config.models import of_servers
from openai_cpu_server.config.routers import Table
from openai_cpu_server.contract.mcp import McpLimits, McpServerOptions

_DEFAULTS = McpLimits()
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def _filled_in(values: Mapping[str, str]) -> dict[str, str]:
    """Replace `${NAME}`, so that secrets need not stand in the file."""

    def found(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise ValueError(f"the environment has no variable {match[1]}")
        return os.environ[match[1]]

    return {name: _VARIABLE.sub(found, value) for name, value in values.items()}


Filled = Annotated[dict[str, str], AfterValidator(_filled_in)]


class McpServerTable(Table):
    """`[mcp.NAME]`: a server that is started as a command, or reached by HTTP."""

    command: str | None = Field(None, min_length=1, description="a program that speaks MCP over its pipes")
    args: list[str] = Field([], description="its arguments")
    env: Filled = Field(
        {}, description="additional variables of its environment; ${NAME} is a variable of this server"
    )
    cwd: Path | None = Field(None, description="its working directory")
    url: str | None = Field(
        None, pattern="^https?://", description="URL of a server that speaks MCP over streamable HTTP"
    )
    headers: Filled = Field({}, description="headers that are sent to it; ${NAME} as in env")
    tools: list[str] | None = Field(None, min_length=1, description="only these are offered; default: all")

    @model_validator(mode="after")
    def _is_one_kind(self) -> McpServerTable:
        if (self.command is None) == (self.url is None):
            raise ValueError("give it a command or a url")
        others = {"headers"} if self.url is None else {"args", "env", "cwd"}
        if foreign := sorted(self.model_fields_set & others):
            raise ValueError(f"{foreign[0]!r} needs a {'url' if self.url is None else 'command'}")
        return self

    @property
    def options(self) -> McpServerOptions:
        return McpServerOptions(
            command=(self.command, *self.args) if self.command is not None else (),
            env=self.env,
            cwd=str(expanded_path(self.cwd)) if self.cwd is not None else None,
            url=self.url or "",
            headers=self.headers,
            tools=frozenset(self.tools) if self.tools is not None else None,
        )


ServerName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class McpOptions(BaseModel):
    """Tools that this server calls itself."""

    mcp: CliSuppress[dict[ServerName, McpServerTable]] = of_servers(
        {},
        description="[mcp.NAME] of the TOML file: servers of tools that models may call, with command, args "
        "and env, or url and headers; keys of --api-keys list the servers that they may use",
    )
    mcp_allow_url: list[str] = of_servers(
        [],
        description="requests may name MCP servers on this host by URL; `*.example.org` means all hosts "
        "below, `*` any; private addresses are always refused; may be given several times; "
        "default: none",
    )
    mcp_rounds: int = of_servers(
        _DEFAULTS.rounds,
        ge=1,
        le=1000,
        description="maximum number of generations of one response that may call tools of MCP servers",
    )
    mcp_seconds: float = of_servers(
        _DEFAULTS.seconds,
        gt=0,
        description="seconds that one call of an MCP server may take, including its start",
    )
    mcp_result_kb: int = of_servers(
        _DEFAULTS.result_bytes // 1024,
        ge=1,
        description="maximum KiB of text in one result of an MCP server; the model is informed of a larger "
        "one",
    )

    @property
    def mcp_limits(self) -> McpLimits:
        return McpLimits(
            rounds=self.mcp_rounds, seconds=self.mcp_seconds, result_bytes=self.mcp_result_kb * 1024
        )
