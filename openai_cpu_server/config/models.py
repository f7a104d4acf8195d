"""Options of a model: the server's defaults, and overrides of its TOML table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainValidator, model_validator
from pydantic_settings import NoDecode

from openai_cpu_server.config.adapters import AdapterSource, adapters_of_table
from openai_cpu_server.config.routers import RouterTable, Table
from openai_cpu_server.contract.figures import Price
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.offload import ALL_LAYERS, ON_CPU, Offload
from openai_cpu_server.contract.request import (
    COUNT,
    REPEAT_PENALTY,
    SHARE,
    TEMPERATURE,
    TOP_K,
    USAGE_PENALTY,
    Bounds,
    Sampling,
    WholeBounds,
)


class PriceTable(Table):
    input: float = Field(ge=0, description="for a million input tokens")
    cached: float | None = Field(
        None, ge=0, description="for those that were not computed; default: as input"
    )
    output: float = Field(ge=0, description="for a million output tokens")
    audio_minute: float = Field(0.0, ge=0, description="for a minute of sound, beside its tokens")

    @property
    def price(self) -> Price:
        cached = self.input if self.cached is None else self.cached
        return Price(input=self.input, cached=cached, output=self.output, audio_minute=self.audio_minute)


_MAX_THREADS = 512
"""llama.cpp's own limit."""
ENGINE_DEFAULTS = EngineOptions(model_path="")
"""Home, with `BY_DEFAULT`, of defaults that options share with engines."""

ToolFormatName = Literal[
    "auto", "generic", "demo", "hermes", "llama3", "pythonic", "mistral", "mistral-args", "mistral-ids",
    "qwen3-coder", "glm", "deepseek", "deepseek-v3.1", "granite", "phi4", "phi4-tags", "functools",
    "functiongemma", "gemma4", "harmony", "kimi", "nemotron", "command-r7b", "apertus", "seed-oss",
    "minimax", "lfm2", "hy3", "deepseek-v3.2", "deepseek-v4", "minicpm5", "kimi-k3", "apriel", "minimax-m1",
    "minimax-m3", "gigachat", "gigachat3", "solar", "functionary-v3.1", "command-r",
]  # fmt: skip
ReasoningFormatName = Literal[
    "auto", "none", "think", "harmony", "gemma", "mistral", "cohere", "seed", "apertus", "apriel",
    "granite", "granite-3.2", "hunyuan", "hy3", "minimax-m3", "kimi-k3", "solar", "thought",
]  # fmt: skip


OF_SERVERS = "of_servers"


def of_servers(default: Any, **options: Any) -> Any:
    """Field of an option that commands without a server reject."""
    return Field(default, json_schema_extra={OF_SERVERS: True}, **options)


def one_or_more(value: object) -> object:
    """Accept one value or a list, which is JSON in a variable."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.startswith("[") else [value]


def _layers(value: object, words: Sequence[str] = ("auto", "all")) -> object:
    if value is None or value in words:
        return value
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,5}", str(value)):
        raise ValueError(f"expected a number of layers, or {' or '.join(words)}")
    return int(str(value))


def _pattern_and_device(text: str) -> tuple[str, str]:
    pattern, _, device = text.rpartition("=")  # a pattern may have that sign too
    return pattern, device


def _tensor_place(text: str) -> str:
    pattern, device = _pattern_and_device(text)
    if not (pattern and device):
        raise ValueError("expected PATTERN=DEVICE")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return text


def _sampling(bounds: Bounds | WholeBounds, description: str, *, after: str = ": ") -> Any:
    return Field(
        None, ge=bounds.least, le=bounds.most, description=f"default of requests{after}{description}"
    )


def _peer_values(ours: Mapping[str, object]) -> BeforeValidator:
    """Accept equivalent values of llama-server and vLLM."""
    return BeforeValidator(lambda value: ours.get(str(value), value))


_Threads = Annotated[int, Field(ge=1, le=_MAX_THREADS)]
_AS_BY_DEFAULT = _peer_values({"-1": None})


_NO_DRAFT_FILE = ("auto", "own", "none")


class ModelOptions(BaseModel):
    """Options of a model. The server's are the defaults of all models."""

    temperature: float | None = _sampling(
        TEMPERATURE, "unless the model has its own; 0: always the likeliest token; default: 1", after=", "
    )
    top_p: float | None = _sampling(SHARE, "share of the likeliest tokens; default: 1, all")
    top_k: int | None = _sampling(
        WholeBounds(-1, TOP_K.most), "number of the likeliest tokens; default: 0, all"
    )
    min_p: float | None = _sampling(SHARE, "least share of the likeliest token's probability; default: 0.05")
    repeat_penalty: float | None = _sampling(
        REPEAT_PENALTY, "divisor of the logits of recent tokens; default: 1, off"
    )
    repeat_last_n: int | None = _sampling(
        WholeBounds(-1, COUNT.most), "tokens that --repeat-penalty looks back at; -1: all; default: 64"
    )
    presence_penalty: float | None = _sampling(
        USAGE_PENALTY, "subtracted from the logit of each token of the answer; default: 0"
    )
    frequency_penalty: float | None = _sampling(
        USAGE_PENALTY, "the same for each time that the token occurs; default: 0"
    )
    sampling_defaults: Annotated[Literal["auto", "openai"], _peer_values({"vllm": "openai"})] = Field(
        "auto",
        description="values of the options above that are not set; auto: the model's own, from its file or "
        "its makers, else min_p 0.05; openai: temperature 1, top_p 1 and no cut",
    )
    max_output_tokens: Annotated[
        Annotated[int, Field(ge=0, le=COUNT.most)] | None, _peer_values({"-1": 0, "-2": 0})
    ] = Field(
        None,
        description="output limit of requests that set none; 0: the rest of the context; default: 4096, or "
        "16384 for models that reason",
    )

    chat_template: Path | None = Field(None, description="jinja2 file to use instead of the model's own")
    tool_format: ToolFormatName = Field(
        "auto",
        description="format of the model's tool calls; default: that of its chat template, or generic if "
        "the template has no known format",
    )
    reasoning_format: Annotated[ReasoningFormatName, _peer_values({"deepseek": "auto"})] = Field(
        "auto",
        description="format of the model's thoughts; none: thoughts stay in the answer; default: that of "
        "its chat template",
    )
    reasoning: Literal["auto", "on", "off"] = Field(
        "auto",
        description="whether the model thinks if the request does not set it; auto: its chat template "
        "decides",
    )
    reasoning_budget: Annotated[Annotated[int, Field(ge=0)] | None, _AS_BY_DEFAULT] = Field(
        None,
        description="maximum number of thinking tokens if the request does not set it; 0: none; default: no "
        "limit",
    )
    json_whitespace: Literal["compact", "flexible"] = Field(
        "compact", description="white space that the model may write in JSON output"
    )
    json_additional: Literal["closed", "open"] = Field(
        "closed",
        description="properties that a JSON Schema does not declare, if it declares some and leaves "
        "additionalProperties out; closed: the model writes none; open: any, as in the standard",
    )
    ctx_size: int | None = Field(
        None,
        ge=256,
        description="tokens of the KV pool; default: half of the memory that the weights leave, at most "
        "16384",
    )
    max_seqs: int = Field(
        ENGINE_DEFAULTS.max_seqs,
        ge=1,
        le=254,
        description="maximum number of sequences that run at once",
    )
    threads: Annotated[_Threads | None, _AS_BY_DEFAULT] = Field(
        None, description="compute threads; default: physical cores"
    )
    threads_batch: Annotated[_Threads | None, _AS_BY_DEFAULT] = Field(
        None, description="threads for steps of more than one token; default: as --threads"
    )
    flash_attention: bool = Field(
        ENGINE_DEFAULTS.flash_attention, description="flash attention; without it, long contexts are slower"
    )
    profile: Literal["auto", "off"] = Field(
        "auto", description="use the results of `openai-cpu-server tune` for options that are not set"
    )
    kv_type: Literal["auto", "f32", "f16", "bf16", "q8_0"] = Field(
        "auto", description="type of KV cells; auto is f16"
    )
    repack: Literal["auto", "on", "off"] = Field(
        "auto",
        description="repack weights for this CPU when they are loaded; auto: if that is faster, measured "
        "once for each file",
    )
    kernels: Literal["auto", "invariant", "fast", "off"] = Field(
        ENGINE_DEFAULTS.kernels,
        description="off: ggml computes everything; invariant: our kernels, where they are verified; their "
        "results do not depend on other requests of the same step; auto: invariant, and AMX tiles on CPUs "
        "that have them; fast: auto, and 16-bit attention for prompts on CPUs without AMX",
    )
    huge_pages: bool = Field(
        ENGINE_DEFAULTS.reads_weights,
        description="read the weights into huge pages instead of mapping the file: the start is slower, and "
        "each engine has its own copy; the gain depends on machine and model",
    )
    prefill_tokens: int = Field(
        ENGINE_DEFAULTS.prefill_tokens,
        ge=16,
        le=65_536,
        description="maximum number of tokens in a step (llama.cpp's batch)",
    )
    speculation: Literal["auto", "off"] = Field(
        ENGINE_DEFAULTS.speculation,
        description="verify several predicted tokens of a sequence in one step, which does not change "
        "answers; auto: where that is predicted to be faster",
    )
    draft_model: str = Field(
        "auto",
        min_length=1,
        description="source of drafts beside prompt lookup: a small model with the same tokenizer, or a "
        "file with a prediction head, by the names of --model; own: the model's own head, or "
        "one in a file beside it or in its repository; none; auto: own if there is one",
    )
    draft_max: int = Field(
        ENGINE_DEFAULTS.draft_max,
        ge=1,
        description="maximum number of tokens that one sequence drafts in a step",
    )
    gpu_layers: Annotated[int | Literal["auto", "all"] | None, BeforeValidator(_layers)] = Field(
        None,
        description="number of layers, the last ones, on a device beside the CPU, as far as they fit; auto: "
        "the fastest split that fits. llama.cpp must be built for a device (scripts/serve "
        "--gpu); default: 0, or auto with --device, --cpu-moe or --kv-on-gpu on",
    )
    cpu_moe: Annotated[int | Literal["all"], BeforeValidator(partial(_layers, words=("all",)))] = Field(
        0,
        description="number of layers, the first ones, whose experts stay on the CPU; without a number: all",
    )
    tensor_place: Annotated[
        list[Annotated[str, AfterValidator(_tensor_place)]], NoDecode, BeforeValidator(one_or_more)
    ] = Field(
        [],
        description="PATTERN=DEVICE: tensors whose name matches the regular expression go to this device "
        "(CPU, or a name of --device), before all other options; may be given several times",
    )
    kv_on_gpu: Literal["auto", "on", "off"] = Field(
        "auto",
        description="whether KV cells lie on the device of their layers; auto: if that is faster",
    )
    device: str | None = Field(
        None,
        min_length=1,
        description="name of the device; openai-cpu-server inspect lists them; default: the first",
    )
    draft_gpu_layers: Annotated[int | Literal["auto", "all"], BeforeValidator(_layers)] = Field(
        0, description="--gpu-layers of the draft model"
    )
    mmproj: str = Field(
        "auto",
        description="projector for pictures and sounds: a file, by the names of --model; off; or auto: the "
        "matching file beside the model's, else that of its repository on the hub",
    )
    cache_mb: int | None = Field(
        None,
        ge=0,
        description="MiB of host memory for the prefix cache; 0: none; default: a quarter of the machine's",
    )
    cache_file: str = Field(
        "auto",
        min_length=1,
        description="file that keeps the prefix cache between runs; off: none; auto: a bounded part of it "
        "in the user's cache directory",
    )
    pin_prompt: list[Path] = Field(
        [],
        description="compute the prompt in this file at the start and never evict it; may be given several "
        "times",
    )

    @model_validator(mode="after")
    def _has_one_source_of_defaults(self) -> ModelOptions:
        if self.sampling_defaults == "openai" and self.sampling:
            named = next(iter(self.sampling))
            raise ValueError(f"sampling_defaults is 'openai', which contradicts {named!r}: drop one of them")
        return self

    @property
    def sampling(self) -> dict[str, int | float]:
        """Sampling parameters that are set, by the contract's names."""
        values = fields_for(Sampling, self, of=ModelOptions)
        found = {name: value for name, value in values.items() if value is not None}
        without_limit = {"top_k": 0, "repeat_last_n": COUNT.most}
        return {**found, **{name: most for name, most in without_limit.items() if found.get(name) == -1}}

    @property
    def engine_fields(self) -> dict[str, object]:
        """Fields of `EngineOptions` from these options alone."""
        return {
            **fields_for(EngineOptions, self, of=ModelOptions),
            "kv_tokens": self.ctx_size,
            "kv_type": "f16" if self.kv_type == "auto" else self.kv_type,
            "repack": {"auto": None, "on": True, "off": False}[self.repack],
            "reads_weights": self.huge_pages,
            "cache_file": None if self.cache_file in ("auto", "off") else self.cache_file,
            "offload": self.offload,
            "draft_offload": self.draft_offload,
            "head": self.draft_model if self.draft_model in _NO_DRAFT_FILE else "none",
        }

    @property
    def wants_device(self) -> bool:
        return self.offload.wants_device or self.draft_offload.wants_device

    @property
    def draft_offload(self) -> Offload:
        if self.draft_model in _NO_DRAFT_FILE:
            return ON_CPU
        return Offload(gpu_layers=self.draft_gpu_layers, device=self.device)

    @property
    def offload(self) -> Offload:
        wants_gpu = self.device is not None or self.cpu_moe != 0 or self.kv_on_gpu == "on"
        gpu_layers: int | Literal["auto", "all"] = "auto" if wants_gpu else 0
        return Offload(
            gpu_layers=gpu_layers if self.gpu_layers is None else self.gpu_layers,
            cpu_moe=ALL_LAYERS if self.cpu_moe == "all" else self.cpu_moe,
            tensor_place=tuple(map(_pattern_and_device, self.tensor_place)),
            kv_on_gpu={"auto": None, "on": True, "off": False}[self.kv_on_gpu],
            device=self.device,
        )


def fields_for(record: type[msgspec.Struct], options: BaseModel, *, of: type[BaseModel]) -> dict[str, Any]:
    """Return the options that a record has under the same names. `of`: class whose options count."""
    return {name: getattr(options, name) for name in of.model_fields if name in record.__struct_fields__}


class ModelTable(ModelOptions, Table):
    """`[models.NAME]`: a model and its overrides of the server's options."""

    source: str | None = Field(
        None, min_length=1, description="as --model without a name; default: what NAME itself means"
    )
    aliases: list[str] = Field([], description="further names in the API")
    keep_alive: float | None = Field(None, ge=0, description="as --idle-unload; 0: as soon as it is idle")
    pinned: bool = Field(False, description="load the model at the start, and never unload it")
    adapters: Annotated[tuple[AdapterSource, ...], PlainValidator(adapters_of_table)] = Field(
        (), description='LoRA adapters: NAME = "PATH[@SCALE]", or {path = ..., scale = ...}'
    )
    memory: int | None = Field(None, ge=1, description="maximum memory in MiB; default: its KV pool decides")

    router: RouterTable | None = Field(
        None, description="options of a router, which chooses a model for each request"
    )

    @model_validator(mode="after")
    def _is_model_or_router(self) -> ModelTable:
        others = self.model_fields_set - {"router", "aliases"}
        if self.router is not None and others:
            raise ValueError(f"a router has no {sorted(others)[0]!r}")
        return self

    def over(self, server: ModelOptions) -> ModelOptions:
        """Return the server's options with these overrides."""
        names = set(ModelOptions.model_fields)
        own, common = self.model_fields_set & names, server.model_fields_set & names
        values = {name: getattr(self if name in own else server, name) for name in names}
        return ModelOptions.model_construct(_fields_set=own | common, **values)
