from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Union

from pydantic import Field

from openai_cpu_server.api.generation import schema as shared
from openai_cpu_server.api.generation.params import JsonObject
from openai_cpu_server.contract.request import COUNT
from openai_cpu_server.errors import missing
from openai_cpu_server.http.ignored_params import (
    IgnoredParam,
    IgnoredParams,
    UnsupportedParam,
    UnsupportedParams,
)
from openai_cpu_server.http.parse import by_value
from openai_cpu_server.json_size import MOST_TOKENS
from openai_cpu_server.models.defaults import SamplingValues

_MAX_TOOLS = 512
"""Home Assistant has one tool for each action of a house."""
_RUNNER = IgnoredParam("the server's options set it for all requests")
_NO_MIROSTAT = "this sampler is not implemented"
OLLAMA_DEFAULTS: SamplingValues = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""Ollama's values for fields that neither a request nor the model has (docs/modelfile)."""


class OllamaOptions(shared.OpenBody):
    ignored: ClassVar[IgnoredParams] = dict.fromkeys(
        (
            "num_ctx",
            "num_keep",
            "num_batch",
            "num_gpu",
            "main_gpu",
            "num_thread",
            "numa",
            "low_vram",
            "use_mmap",
            "use_mlock",
            "f16_kv",
            "vocab_only",
            "logits_all",
            "draft_num_predict",
            "mirostat_tau",
            "mirostat_eta",
        ),
        _RUNNER,
    )
    unsupported: ClassVar[UnsupportedParams] = {
        "mirostat": UnsupportedParam(_NO_MIROSTAT, (0,)),
        "tfs_z": UnsupportedParam(_NO_MIROSTAT, (1, 1.0)),
        "penalize_newline": UnsupportedParam("line ends are tokens like all others", (True,)),
    }

    num_predict: Annotated[int, Field(ge=-2, le=COUNT.most), shared.IntegralFloat] | None = None
    """Values below 1 allow all that the context leaves."""
    stop: shared.Stop | None = None
    seed: Annotated[shared.Seed, shared.IntegralFloat] | None = None
    temperature: shared.Temperature | None = None
    top_k: Annotated[shared.TopK, shared.IntegralFloat] | None = None
    top_p: shared.Probability | None = None
    min_p: shared.Probability | None = None
    typical_p: shared.TypicalP | None = None
    repeat_penalty: shared.RepeatPenalty | None = None
    repeat_last_n: Annotated[shared.LastN, shared.IntegralFloat] | None = None
    presence_penalty: shared.Penalty | None = None
    frequency_penalty: shared.Penalty | None = None
    logit_bias: dict[str, shared.Bias] | None = None


Think = Annotated[Union[bool, Literal["low", "medium", "high", "max"]], by_value()]
KeepAlive = Union[str, int, float]
TokenId = Annotated[int, Field(ge=0, le=COUNT.most), shared.IntegralFloat]


class OllamaBody(shared.ProgressBody, shared.OpenBody):
    """Body whose unknown fields are ignored, as in Ollama."""

    ignored: ClassVar[IgnoredParams] = {
        "keep_alive": IgnoredParam(
            "the server decides how long models stay in memory; 0 without messages or a prompt unloads",
            (0, "0"),
        )
    }
    unsupported: ClassVar[UnsupportedParams] = {
        "shift": UnsupportedParam("an answer ends at the end of the context", (False,))
    }

    model: str
    stream: bool | None = None
    format: shared.SchemaOrText | None = None
    options: OllamaOptions | None = None
    think: Think | None = None
    keep_alive: KeepAlive | None = None
    logprobs: bool | None = None
    """Includes reasoning and marks."""
    top_logprobs: Annotated[shared.TopLogprobs, shared.IntegralFloat] | None = None
    """Alternatives per token, with `logprobs`."""
    truncate: bool | None = None
    """False rejects a long conversation. Otherwise its oldest messages are dropped."""

    @property
    def unloads(self) -> bool:
        time = self.keep_alive
        return time == 0 or (isinstance(time, str) and time.rstrip("hmsnu") in ("0", "-0"))


class OllamaFunction(shared.OpenBody):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    parameters: shared.ToolSchema | None = None


class OllamaTool(shared.OpenBody):
    type: Literal["function"] | None = None
    function: OllamaFunction


class OllamaCalled(shared.OpenBody):
    name: str
    arguments: JsonObject | None = None


class OllamaSentCall(shared.OpenBody):
    id: str | None = None
    function: OllamaCalled


class OllamaMessage(shared.OpenBody):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: shared.ListOf[str] | None = None
    tool_calls: shared.ListOf[OllamaSentCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatBody(OllamaBody):
    messages: shared.ListOf[OllamaMessage] | None = None
    """Loads the model if absent, or unloads it with a `keep_alive` of 0."""
    tools: Annotated[list[OllamaTool], Field(max_length=_MAX_TOOLS, fail_fast=True)] | None = None


class OllamaGenerateBody(OllamaBody):
    most_numbers: ClassVar[int] = MOST_TOKENS
    prompt: str | None = None
    """Empty: as without `messages`."""
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    """Replacement in Go's language."""
    images: shared.ListOf[str] | None = None
    raw: bool | None = None
    context: shared.ListOf[TokenId] | None = None
    """Earlier answer's, which this prompt continues."""


class OllamaShowBody(shared.OpenBody):
    model: str | None = None
    name: str | None = None


ModelName = Annotated[str, Field(min_length=1, max_length=512)]
NO_FILES = "this server takes no files; pull a model of the hub, or name its file with --model"


class OllamaNamed(shared.OpenBody):
    model: ModelName | None = None
    name: ModelName | None = None
    stream: bool | None = None

    @property
    def model_name(self) -> str:
        name = self.model or self.name
        if name is None:
            raise missing("model")
        return name


class OllamaPullBody(OllamaNamed):
    ignored: ClassVar[IgnoredParams] = {
        "insecure": IgnoredParam("the hub is the one that HF_ENDPOINT names", (False,))
    }


class OllamaCreateBody(OllamaNamed):
    ignored: ClassVar[IgnoredParams] = {"license": IgnoredParam("it belongs to the model")}
    unsupported: ClassVar[UnsupportedParams] = {
        "files": UnsupportedParam(NO_FILES, ({},)),
        "adapters": UnsupportedParam("load it with POST /v1/adapters", ({},)),
        "quantize": UnsupportedParam("the command `openai-cpu-server quantize` writes smaller files", ("",)),
        "modelfile": UnsupportedParam(
            "send 'from', 'system', 'template', 'parameters', 'messages' instead", ("",)
        ),
    }

    base: Annotated[ModelName | None, Field(alias="from")] = None
    system: str | None = None
    template: str | None = None
    """Ollama template of prompts. Absent: the model's own."""
    parameters: OllamaOptions | None = None
    messages: shared.ListOf[OllamaMessage] | None = None


class OllamaCopyBody(shared.OpenBody):
    source: ModelName
    destination: ModelName
