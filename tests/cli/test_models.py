"""`openai-cpu-server models`: names, models on this machine, and models that fit."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openai_cpu_server.cli.models import listed_models
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.model.kv_size import KVType, bytes_per_cell, default_states_bytes, pool_cells
from openai_cpu_server.model_source.aliases import MODELS_BY_ALIAS
from openai_cpu_server.model_source.names import parse_hub_name
from openai_cpu_server.model_source.package import PACKAGED
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning import REASONING_FORMATS, reasoning_format_for
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, format_for
from tests.cli.test_pull import Home
from tests.hub_stand_in import Repo, running
from tests.llama.odd_models import header_only, rewritten
from tests.tiny_model import tiny_model_path

pytestmark = pytest.mark.thorough

DOWNLOADED = ("qwen3.5-0.8b", "gpt-oss-20b", "qwen3-reranker-0.6b", "smollm3-3b")


class Models(Home):
    @functools.cached_property
    def listed(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in json.loads(self.output("models", "--json"))}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    folder, tiny = tmp_path_factory.mktemp("models"), tiny_model_path("q4_k_m")
    ranker = rewritten(tiny, folder / "r.gguf", {"llama.pooling_type": 4}).read_bytes()
    adapter = header_only(folder / "a.gguf", "llama", {"general.type": "adapter"}).read_bytes()
    repos = {
        parse_hub_name(MODELS_BY_ALIAS[alias].source or "").repo: Repo({_file(alias): tiny.read_bytes()})
        for alias in DOWNLOADED
    }
    repos[parse_hub_name(MODELS_BY_ALIAS["smollm3-3b"].source or "").repo] = Repo(
        {_file("smollm3-3b"): b"GGUF"}
    )
    repos["acme/some"] = Repo({"plain.gguf": tiny.read_bytes(), "ranks.gguf": ranker, "lora.gguf": adapter})
    with running(repos) as hub:
        home = Models(folder / "hf", hub)
        files = [f"hf:acme/some/{name}.gguf" for name in ("plain", "ranks", "lora")]
        home.output("pull", "--json", *DOWNLOADED, *files)
        hub.requests.clear()
        yield home


def _file(alias: str) -> str:
    return parse_hub_name(MODELS_BY_ALIAS[alias].source or "").file or "gpt-oss-20b-MXFP4.gguf"


def test_all_names_are_listed_and_downloads_have_the_figures_of_their_files(home: Models) -> None:
    tiny, listed = tiny_model_path("q4_k_m"), home.listed
    assert set(MODELS_BY_ALIAS) <= set(listed)
    assert home.hub.requests == []
    here = {name for name, each in listed.items() if each["here"] == "downloaded"}
    assert here == {*DOWNLOADED, "hf:acme/some/plain.gguf", "hf:acme/some/ranks.gguf"}
    for name in ("qwen3.5-0.8b", "gpt-oss-20b", "hf:acme/some/plain.gguf"):
        assert listed[name]["size_bytes"] == tiny.stat().st_size
        assert listed[name]["kv_bytes_per_token"] == bytes_per_cell(GgufHeader(tiny), KVType.F16)
        assert (listed[name]["fits"], listed[name]["pool_tokens"]) == (True, 16_384)
    assert listed["hf:acme/some/ranks.gguf"]["kind"] == "reranks"
    assert listed["smollm3-3b"]["size_bytes"] == 1_920_000_000  # the file on this machine is not a model
    assert listed["qwen3.5-4b"]["here"] is None


def test_figures_of_packaged_models_come_from_their_files(
    home: Models, smollm2: Path, gemma3_270m: Path, minilm: Path
) -> None:
    listed = home.listed
    assert (listed["smollm2"]["here"], listed["smollm2"]["size_bytes"]) == ("package", smollm2.stat().st_size)
    assert (listed["minilm"]["here"], listed["minilm"]["kind"]) == ("package", "embeds")
    for alias, path in (("smollm2", smollm2), ("gemma3-270m", gemma3_270m)):
        model = MODELS_BY_ALIAS[alias]
        assert bytes_per_cell(GgufHeader(path), KVType.F16) == model.cell_bytes
        assert path.stat().st_size == pytest.approx(model.gigabytes * 1e9, rel=0.1)  # another quantisation
    assert set(PACKAGED) <= set(MODELS_BY_ALIAS)


def test_as_text(home: Models) -> None:
    head, *lines = home.output("models").splitlines()
    assert " ".join(head.split()) == "--model size fits KV tokens here kind tool calls thoughts"
    (line,) = [line for line in lines if line.startswith("qwen3.5-0.8b")]
    figures = "qwen3.5-0.8b 1.10 MB yes 16,384 downloaded generates qwen3-coder think"
    assert line.split() == figures.split()


@pytest.mark.parametrize("free", [0, 10**9, 6 * 10**9, 10**12])
def test_a_model_fits_if_a_server_would_have_room(free: int) -> None:
    for model in listed_models(free):
        used = model.size_bytes + default_states_bytes(model.state_bytes, max(0, free - model.size_bytes))
        if used >= free:
            assert not model.fits
        elif model.kv_bytes_per_token is not None and model.fits:
            assert model.pool_tokens == pool_cells(None, model.kv_bytes_per_token, free - used)
    assert any(model.fits for model in listed_models(free)) is (free > 0)


def test_weights_alone_are_not_enough() -> None:
    """Require room for 256 tokens of gemma-4-12b, which take 172 MB and may take half of the free memory."""
    size, cells = round(MODELS_BY_ALIAS["gemma-4-12b"].gigabytes * 1e9), 256 * 671_744
    for free, fits in ((size + 2 * cells - 2, False), (size + 2 * cells, True)):
        (model,) = [model for model in listed_models(free) if model.name == "gemma-4-12b"]
        assert model.fits is fits


def test_formats_are_among_the_servers_formats() -> None:
    for alias, model in MODELS_BY_ALIAS.items():
        assert model.tools is None or model.tools in TOOL_FORMATS, alias
        assert model.thoughts is None or model.thoughts in REASONING_FORMATS, alias
        assert model.kind is ModelKind.GENERATES or (model.tools, model.cell_bytes) == (None, None), alias


TEMPLATES = {
    "gemma-2-2b": "google-gemma-2-2b-it",
    "gemma-4-e4b": "google-gemma-4-31B-it",
    "gpt-oss-20b": "openai-gpt-oss-120b",
    "granite-4.0-h-tiny": "ibm-granite-granite-4.0",
    "lfm2.5-8b-a1b": "LFM2.5-8B-A1B",
    "llama-3.2-3b": "meta-llama-Llama-3.2-3B-Instruct",
    "phi-4-mini": "microsoft-Phi-4-mini-instruct",
    "qwen2.5-1.5b": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3-4b": "Qwen-Qwen3-0.6B",
    "qwen3-coder-30b-a3b": "Qwen3-Coder",
    "qwen3.5-4b": "Qwen3.5-4B",
    "smollm3-3b": "HuggingFaceTB-SmolLM3-3B",
}
"""Template of each model, or of its family where that of the model is missing."""


@pytest.mark.parametrize("alias", TEMPLATES)
def test_formats_are_those_of_the_familys_template(alias: str) -> None:
    file = Path(__file__).parents[1] / "prompt" / "templates" / f"{TEMPLATES[alias]}.jinja"
    template = ChatTemplate(file.read_text(), bos_text="", eos_text="")
    thoughts = reasoning_format_for(template)
    found = format_for(template).name, thoughts.name if thoughts else None
    assert found == (MODELS_BY_ALIAS[alias].tools, MODELS_BY_ALIAS[alias].thoughts)
