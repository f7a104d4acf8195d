"""Finds the files of adapters, and says what is in them."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from openai_cpu_server.adapter_options import AdapterSource
from openai_cpu_server.contract.adapter import Adapter
from openai_cpu_server.errors import AdapterFailed, AdapterNotAllowed, StartupError
from openai_cpu_server.llama.gguf.adapter_file import file_digest
from openai_cpu_server.model_source.hub_name import PREFIX
from openai_cpu_server.model_source.resolve import resolve_model
from openai_cpu_server.user_folders import require_utf8

_HUB_CACHE = "openai_cpu_server.model_source.hub:cache_folder"
"""It is imported when it is called: the hub's library takes a quarter of a start."""


class AdapterFiles:
    """Its methods block: they read whole files, and may download some."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: what clients name must lie in it; None: clients may name nothing."""
        self._folder = folder

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where what clients name lies: the folder, and the hub's cache."""
        if self._folder is None:
            return ()
        hub: Path = pkgutil.resolve_name(_HUB_CACHE)()
        return (self._folder.resolve(), hub)

    def of_operator(self, source: AdapterSource) -> Adapter:
        """What whoever starts the server names may lie anywhere. Raises `StartupError`."""
        try:
            return _adapter(source, resolve_model(source.path))
        except AdapterFailed as error:
            raise StartupError(str(error)) from None

    def of_client(self, source: AdapterSource) -> Adapter:
        """What a client names. Raises `AdapterNotAllowed`, `AdapterFailed`.

        A path outside of the folder is refused in the same words whether there is a file or not: nobody
        learns so what lies on this machine.
        """
        if self._folder is None:
            raise AdapterNotAllowed(
                "This server loads no adapters over the API; start it with --adapter-dir DIR."
            )
        if source.path.startswith(PREFIX):
            return self._of_hub(source)
        return _adapter(source, self._within(self._folder, source.path))

    def _of_hub(self, source: AdapterSource) -> Adapter:
        try:
            return _adapter(source, resolve_model(source.path))
        except StartupError as error:
            raise AdapterFailed(f"{error}.") from None

    def _within(self, folder: Path, name: str) -> Path:
        """The file in the folder, links followed."""
        root = folder.resolve()
        try:
            path = (root / name).resolve()
            is_file = path.is_file()
        except (OSError, RuntimeError, ValueError):  # too long a name, a loop of links, a zero byte
            raise AdapterNotAllowed(_OUTSIDE) from None
        if not path.is_relative_to(root):
            raise AdapterNotAllowed(_OUTSIDE)
        if not is_file:
            raise AdapterFailed(f"There is no file {name} in the server's --adapter-dir.")
        return path


_OUTSIDE = "The path leads out of the server's --adapter-dir."


def _adapter(source: AdapterSource, path: Path) -> Adapter:
    try:
        require_utf8(path)
    except StartupError as error:
        raise AdapterFailed(f"{error}.") from None
    return Adapter(name=source.name, path=str(path), digest=file_digest(path), scale=source.scale)
