"""Finds the model: what `--model` says becomes the path of a local GGUF file."""

from openai_cpu_server.model_source.adapter_files import AdapterFiles
from openai_cpu_server.model_source.demo import DemoFiles
from openai_cpu_server.model_source.resolve import FoundModel, local_model, model_to_serve, resolve_model

__all__ = ["AdapterFiles", "DemoFiles", "FoundModel", "local_model", "model_to_serve", "resolve_model"]
