"""`[mcp.NAME]` of the TOML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.contract.mcp import McpLimits
from openai_cpu_server.errors import StartupError


def test_a_table_is_a_program_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_MINE", "abc")
    path = tmp_path / "c.toml"
    path.write_text(
        '[mcp.files]\ncommand = "npx"\nargs = ["-y", "it"]\nenv = {A = "${TOKEN_OF_MINE}"}\ntools = ["x"]\n'
        '[mcp.wiki]\nurl = "https://wiki.example/mcp"\nheaders = {X = "Bearer ${TOKEN_OF_MINE}"}\n'
    )
    settings = read_settings(["--config", str(path), "--mcp-rounds", "3", "--mcp-result-kb", "2"])
    files, wiki = (settings.mcp[name].options for name in ("files", "wiki"))
    assert (files.command, files.env, files.tools) == (("npx", "-y", "it"), {"A": "abc"}, frozenset({"x"}))
    assert (wiki.url, wiki.headers) == ("https://wiki.example/mcp", {"X": "Bearer abc"})
    assert settings.mcp_limits == McpLimits(rounds=3, result_bytes=2048)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('command = "x"\nurl = "https://x"', "[mcp.it]: give it a command or a url"),
        (
            'command = "x"\nheaders = {a = "b"}',
            "[mcp.it]: 'headers' needs a url",
        ),
        ('url = "https://x"\nargs = ["b"]', "[mcp.it]: 'args' needs a command"),
        (
            'command = "x"\nenv = {A = "${NOWHERE}"}',
            "[mcp.it] env: the environment has no variable NOWHERE",
        ),
        ('comand = "x"', "[mcp.it] comand: unknown option; did you mean command?"),
        ('url = "file:///x"', "[mcp.it] url: String should match"),
    ],
)
def test_what_is_wrong_names_the_table(tmp_path: Path, table: str, why: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"[mcp.it]\n{table}\n")
    with pytest.raises(StartupError) as refused:
        read_settings(["--config", str(path)])
    assert why in str(refused.value)
