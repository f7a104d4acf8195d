"""Finds the model: what `--model` says becomes the path of a local GGUF file."""

from openai_cpu_server.model_source.demo import DemoFiles
from openai_cpu_server.model_source.resolve import local_model, resolve_model

__all__ = ["DemoFiles", "local_model", "resolve_model"]
