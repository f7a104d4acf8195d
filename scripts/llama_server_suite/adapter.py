"""Pytest plugin: llama-server's tests start this server with mapped options and random models of the same
kinds, so expected texts are not checked."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from openai_cpu_server.config.folders import user_cache_dir
from tests.llama.odd_models import copy_metadata, written
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path, tiny_projector_path

_FOLDER = Path(tempfile.mkdtemp(prefix="llama-server-suite-"))
_TEMPLATES = {
    "command-r": """
{%- for m in messages -%}
<|START_OF_TURN_TOKEN|><|{{ m.role | upper | replace('ASSISTANT', 'CHATBOT') }}_TOKEN|>
{{- m.content | trim }}<|END_OF_TURN_TOKEN|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{%- endif -%}""",
    "llama3": """
{%- for m in messages -%}
<|start_header_id|>{{ m.role }}<|end_header_id|>{{ "\n\n" ~ m.content | trim }}<|eot_id|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|start_header_id|>assistant<|end_header_id|>{{ "\n\n" }}{%- endif -%}""",
}
"""llama-server's names for `--chat-template`; here it is a file."""
_OURS = (
    *("--any-model-name", "--lenient", "--cache-file", "off", "--cache-mb", "256"),
    *("--jobs-db", "sqlite://", "--read-timeout-s", "600"),
)
_LEAST_CONTEXT = 256
"""Minimum of `--ctx-size`."""


def options_of(theirs: Any) -> list[str]:
    """Return our options for a `ServerProcess` of theirs."""
    slots = theirs.n_slots or 1
    found = [*_OURS, *_models(theirs), "--port", str(theirs.server_port)]
    # A slot has its part of the context: no request has more.
    context = (theirs.n_ctx or 4096) // (1 if theirs.kv_unified else slots)
    found += ["--ctx-size", str(max(context, _LEAST_CONTEXT))]
    found += ["--max-seqs", str(slots)]
    values = {
        "--host": theirs.server_host,
        "--prefill-tokens": theirs.n_batch,
        "--api-key": theirs.api_key,
        "--reasoning": theirs.reasoning,
        "--reasoning-format": "none" if theirs.reasoning_format == "none" else None,
        "--chat-template": theirs.chat_template_file or _template(theirs.chat_template),
        "--media-dir": theirs.media_path,
        "--idle-unload": theirs.sleep_idle_seconds,
    }
    for name, value in values.items():
        found += [] if value is None else [name, str(value)]
    found += ["--no-page"] if theirs.no_ui else []
    return [*found, "--cors-origin", "*"] if theirs.cors_origins is None else found


def _models(theirs: Any) -> list[str]:
    name = (theirs.model_alias or theirs.model_hf_repo or "ggml-org/tinygemma3-GGUF:Q8_0").split(",")[0]
    file = f"{theirs.model_hf_repo}/{theirs.model_hf_file}"
    if "bge" in file:
        return ["--model", f"{name}={_minilm()}"]
    if "reranker" in file:
        return ["--model", f"{name}={_ranker()}"]
    if "infill" in file:
        return ["--model", f"{name}={tiny_model_path(fim=True)}"]
    if "MOE" in file:
        return ["--model", f"{name}={tiny_model_path(shape='tiny-qwen3moe')}"]
    if "gemma3" in file or theirs.model_hf_repo is None:
        projector = tiny_projector_path("gemma3", rows_width=256)
        return ["--model", f"{name}={tiny_model_path(sees=True)}", "--mmproj", str(projector)]
    return ["--model", f"{name}={tiny_model_path()}"]


def _ranker() -> Path:
    path = _FOLDER / "ranker.gguf"
    if path.exists():
        return path
    reader = gguf.GGUFReader(_minilm())
    writer = gguf.GGUFWriter(path, "bert")
    copy_metadata(reader, writer, skip={"bert.pooling_type"})
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_classifier_output_labels(["LABEL_0"])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    random = np.random.default_rng(11)
    shapes = {"cls.weight": (_WIDTH, _WIDTH), "cls.bias": (_WIDTH,), "cls.output.weight": (1, _WIDTH)}
    for name, shape in {**shapes, "cls.output.bias": (1,)}.items():
        writer.add_tensor(name, (0.3 * random.standard_normal(shape)).astype(np.float32))
    return written(writer, path)


_WIDTH = 384
"""Width of all-MiniLM-L6-v2, as large as their encoder."""


def _minilm() -> Path:
    return next(user_cache_dir().glob("all-MiniLM-L6-v2-*.gguf"))


def _template(named: str | None) -> Path | None:
    if named is None or named == "chatml":
        return None
    path = _FOLDER / f"{abs(hash(named))}.jinja"
    path.write_text(_TEMPLATES.get(named, named))
    return path


def start(theirs: Any, timeout_seconds: float = 60) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
    theirs.ours = ServerProcess(*options_of(theirs), env=environment)
    instances().add(theirs)
    theirs.ours.__enter__()
    theirs.process = theirs.ours.process


def stop(theirs: Any) -> None:
    instances().discard(theirs)
    theirs.ours.stop(signal.SIGTERM)
    print("".join(theirs.ours.lines[-40:]))
    theirs.process = None


def instances() -> set[Any]:
    found: set[Any] = sys.modules["utils"].__dict__["server_instances"]
    return found


sys.modules.setdefault("wget", types.ModuleType("wget"))  # it is for downloads, which are not made
import utils  # type: ignore[import-not-found]  # noqa: E402

utils.ServerProcess.start = start
utils.ServerProcess.stop = stop
utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.match_regex = lambda regex, text: True
