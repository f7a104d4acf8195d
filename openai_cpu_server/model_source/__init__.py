"""Finds the model: what `--model` says becomes the path of a local GGUF file.

`server` calls it at the start, and the commands that look at models or change them; `AdapterFiles` also
while the server runs. Files come from disk, the hub's cache, installed packages, or the demo model.
Promises: errors are one line that says what to do; nothing is downloaded that is there, and nothing of a
package is imported. The hub's library and numpy are loaded only where they are needed.
"""

from openai_cpu_server.model_source.resolve import (
    AdapterFiles,
    DemoFiles,
    FoundModel,
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
    "hold",
    "hub_cache",
    "hub_name",
    "local_model",
    "model_to_serve",
    "projector_of",
    "resolve_model",
]
