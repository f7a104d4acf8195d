"""Resolution of `--model` to a local GGUF file. Called by `server` at the start and by commands that
inspect or change models; `AdapterFiles` also while the server runs. Errors are one line that says what to
do. No code of packages is imported, and the hub's library and numpy only where needed."""

from openai_cpu_server.model_source.resolve import (
    AdapterFiles,
    DemoFiles,
    FoundModel,
    drafting_file,
    hold,
    hub_cache,
    hub_name,
    local_model,
    model_to_serve,
    projector_of,
    resolve_model,
)

__all__ = [
    "AdapterFiles",
    "DemoFiles",
    "FoundModel",
    "drafting_file",
    "hold",
    "hub_cache",
    "hub_name",
    "local_model",
    "model_to_serve",
    "projector_of",
    "resolve_model",
]
