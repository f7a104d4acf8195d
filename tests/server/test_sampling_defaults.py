"""Defaults of a model: from its table, its file, its makers and the server's options, in that order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import pytest

from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.contract.request import COUNT
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.models.defaults import ModelDefaults
from openai_cpu_server.server.options import model_defaults
from openai_cpu_server.server.plans import planned_models
from tests.llama.odd_models import written

IN_FILE = {
    "temp": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.01,
    "penalty_repeat": 1.05,
    "penalty_last_n": 256,
}
SMOLLM2 = "SmolLM2-135M-Instruct-Q8_0.gguf"
MAKERS = {"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.05, "repeat_last_n": 256}
"""Recommended values of the makers for that file name."""


def defaults(
    folder: Path,
    *arguments: str,
    name: str = "model.gguf",
    file: Mapping[str, float] | None = None,
    table: str = "",
    toml: str = "",
    thinks: bool = False,
) -> ModelDefaults:
    writer = gguf.GGUFWriter(folder / name, "llama")
    writer.add_block_count(1)
    for key, value in (file or {}).items():  # in the types of llama.cpp's converter
        add = writer.add_float32 if isinstance(value, float) else writer.add_int32
        add(f"general.sampling.{key}", value)
    path = written(writer, folder / name)
    config = folder / "c.toml"
    config.write_text(f'{toml}\n[models.m]\nsource = "{path}"\n{table}')
    settings = read_settings(["--config", str(config), *arguments])
    (plan,) = planned_models(settings)
    return model_defaults(settings, plan, GgufHeader(path), thinks=thinks)


def test_a_file_without_values_has_the_servers_defaults(tmp_path: Path) -> None:
    found = defaults(tmp_path)
    assert (found.values, found.is_bare, found.max_output_tokens) == ({}, False, 4096)
    assert found.over(None) == {"min_p": 0.05}
    assert found.over({"top_k": 40}) == {"top_k": 40}


def test_values_of_the_file_are_renamed_and_rounded(tmp_path: Path) -> None:
    assert defaults(tmp_path, file=IN_FILE).values == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.01,
        "repeat_penalty": 1.05,
        "repeat_last_n": 256,
    }


def test_minus_one_in_the_file_means_no_limit(tmp_path: Path) -> None:
    assert defaults(tmp_path, file={"top_k": -1, "penalty_last_n": -1}).values == {
        "top_k": 0,
        "repeat_last_n": COUNT.most,
    }


def test_each_field_comes_from_the_first_source_with_it(tmp_path: Path) -> None:
    options = ("--temperature", "1.5", "--top-p", "0.5", "--min-p", "0.2", "--top-k", "7")
    found = defaults(
        tmp_path, *options, name=SMOLLM2, file={"top_p": 0.7, "min_p": 0.1}, table="min_p = 0.3\n"
    )
    assert found.values == {**MAKERS, "top_p": 0.7, "top_k": 7, "min_p": 0.3}


def test_the_makers_values_apply_to_any_quantisation(tmp_path: Path) -> None:
    assert defaults(tmp_path, name=SMOLLM2).values == MAKERS
    assert defaults(tmp_path, name="SmolLM2-360M-Instruct-Q8_0.gguf").values == {}


def test_openais_bare_defaults(tmp_path: Path) -> None:
    bare = defaults(tmp_path, "--sampling-defaults", "openai", name=SMOLLM2, file=IN_FILE)
    assert (bare.over(None), bare.is_bare) == ({}, True)
    assert bare.over({"top_k": 40}) == {"top_k": 40}
    of_table = 'sampling_defaults = "openai"\n'
    assert defaults(tmp_path, "--min-p", "0.2", file=IN_FILE, table=of_table).over(None) == {}
    own = defaults(tmp_path, "--sampling-defaults", "openai", file=IN_FILE, table="top_k = 5\n")
    assert own.over(None) == {"top_k": 5}


def test_the_output_limit(tmp_path: Path) -> None:
    assert defaults(tmp_path, thinks=True).max_output_tokens == 16_384
    assert defaults(tmp_path, "--max-output-tokens", "99", thinks=True).max_output_tokens == 99
    assert defaults(tmp_path, "--max-output-tokens", "0").max_output_tokens is None
    own = defaults(tmp_path, "--max-output-tokens", "99", table="max_output_tokens = 7\n")
    assert own.max_output_tokens == 7


@pytest.mark.parametrize(
    ("key", "value"),
    [("temp", 3.0), ("temp", float("nan")), ("top_p", 1.5), ("penalty_repeat", 0.0), ("top_k", -2)],
)
def test_a_file_with_a_value_out_of_range_is_refused_unless_its_table_has_another(
    tmp_path: Path, key: str, value: float
) -> None:
    with pytest.raises(
        StartupError, match=rf"general\.sampling\.{key} is .*, which is not between"
    ) as refused:
        defaults(tmp_path, file={key: value})
    assert "\n" not in str(refused.value)
    name = {"temp": "temperature", "penalty_repeat": "repeat_penalty"}.get(key, key)
    assert defaults(tmp_path, file={key: value}, table=f"{name} = 1\n").values == {name: 1}
