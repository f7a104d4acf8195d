"""README's table of options says what the program says. (Of metrics: `observe/test_documents.py`.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from openai_cpu_server.settings import Settings, read_settings

_README = (Path(__file__).parent.parent / "README.md").read_text()
_ROW = re.compile(r"^\| (`--.*?) \| (.*?) \| .*\|$", re.MULTILINE)


def shown() -> dict[str, str]:
    """Option -> what the table says of its default; rows of several options list as many defaults."""
    section = _README.split("\n## Options\n")[1].split("\n## ")[0]
    found: dict[str, str] = {}
    for names, defaults in _ROW.findall(section):
        options = re.findall(r"`(--[\w-]+)", names)
        parts = defaults.split(", ")
        if len(parts) != len(options):
            parts = [defaults] * len(options)
        found |= dict(zip(options, parts, strict=True))
    return found


def option(name: str, field: FieldInfo) -> str:
    """As one would give it: a switch that is on is one that can be switched off."""
    kebab = name.replace("_", "-")
    return f"--no-{kebab}" if field.default is True else f"--{kebab}"


def test_the_readme_names_every_option_and_no_other() -> None:
    assert set(shown()) == {option(name, field) for name, field in Settings.model_fields.items()}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_the_readme_says_its_default(name: str) -> None:
    field = Settings.model_fields[name]
    said = shown()[option(name, field)]
    if isinstance(field.default, bool):
        assert said == ("on" if field.default else "off")
    elif isinstance(field.default, str):
        assert f"`{field.default}`" in said
    elif isinstance(field.default, (int, float)):
        assert f"{field.default:g}" == said.strip("`")
    else:
        assert said, "what happens without it"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_option_says_what_it_is_for(name: str) -> None:
    assert Settings.model_fields[name].description


def test_lists_are_json_in_the_environment_and_lists_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the README has it."""
    monkeypatch.setenv("OCS_CORS_ORIGIN", '["https://a.example", "https://b.example"]')
    config = tmp_path / "server.toml"
    config.write_text('pin_prompt = ["system.txt"]\n')
    settings = read_settings(["--config", str(config)])
    assert settings.cors_origin == ["https://a.example", "https://b.example"]
    assert settings.pin_prompt == [Path("system.txt")]
