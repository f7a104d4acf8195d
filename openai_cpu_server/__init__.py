"""OpenAI-compatible server for GGUF models on CPUs, one continuous batching scheduler behind every route."""

__version__ = "0.1.0"
