"""`openai-cpu-server models`: known models with their memory needs here."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from openai_cpu_server.cli.plain_text import bytes_text, columns, printable, show
from openai_cpu_server.config.command_line import CommandParser
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, model_kind, total_bytes
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.model.kv_size import KVType, bytes_per_cell, default_states_bytes, pool_cells
from openai_cpu_server.model_source.aliases import MODELS_BY_ALIAS, AliasedModel
from openai_cpu_server.model_source.lazy_hub import hub
from openai_cpu_server.model_source.names import HubName, parse_hub_name, preferred
from openai_cpu_server.model_source.package import PACKAGED, PackagedModel


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str | None
    """Name at the hub, or None for a package's."""
    here: str | None
    """`package`, `downloaded`, or None if it must be downloaded."""
    kind: str
    size_bytes: int
    """Size of the local file, or the hub's figure."""
    kv_bytes_per_token: int | None
    """Upper bound in f16, or None if unknown without its file."""
    state_bytes: int
    """Known part of a sequence's state beside KV cells."""
    tool_format: str | None
    reasoning_format: str | None
    fits: bool
    """Enough memory for a server with this model alone."""
    pool_tokens: int | None
    """Pool of a server, or None if the model does not fit, needs none, or has an unknown cell size."""


def models(arguments: Sequence[str]) -> None:
    as_json = _wants_json(
        arguments,
        "models",
        "List the models that --model knows by name, and those that were downloaded: their size, and whether "
        "they fit into this machine's free memory. Nothing is loaded or downloaded.",
    )
    free = Machine().free_memory()
    listed = listed_models(free)
    note = (
        f"{bytes_text(free)} of memory are free. KV tokens: the KV pool of a server with this model alone,\n"
        "without --ctx-size. The first start downloads a missing model."
    )
    _show(listed, as_json, f"{columns(rows(listed), right=(1, 3))}\n\n{note}")


def list_here(arguments: Sequence[str]) -> None:
    as_json = _wants_json(
        arguments,
        "list",
        "List the models on this machine: in the hub's cache, or as packages. `models` also lists "
        "models that can be downloaded.",
    )
    here = [model for model in listed_models(Machine().free_memory()) if model.here is not None]
    cells = [(name, size, fits, place, kind) for name, size, fits, _, place, kind, *_ in rows(here)]
    _show(here, as_json, columns(cells, right=(1,)))


def _wants_json(arguments: Sequence[str], command: str, description: str) -> bool:
    parser = CommandParser(command, description)
    parser.add_argument("--json", action="store_true", help="print the list as JSON, with sizes in bytes")
    return bool(parser.parse_args(arguments).json)


def _show(listed: Sequence[ListedModel], as_json: bool, text: str) -> None:
    show(msgspec.json.format(msgspec.json.encode(listed), indent=2).decode() if as_json else text)


def listed_models(free_bytes: int) -> list[ListedModel]:
    """Return named models, then other downloads."""
    cached = hub.all_cached()
    named = {name: _in_cache(model.source, cached) for name, model in MODELS_BY_ALIAS.items()}
    listed = [
        _listed(name, MODELS_BY_ALIAS[name], _packaged(name) or path, free_bytes)
        for name, path in sorted(named.items())
    ]
    others = {str(name): path for name, path in cached.items() if path not in named.values()}
    for name, path in sorted(others.items()):
        try:  # adapters and unreadable files are left out; `inspect` reports why
            header = GgufHeader(path)
            model = AliasedModel(source=name, gigabytes=0, kind=model_kind(header))
        except StartupError:
            continue
        if header.get_str("general.type") in (None, "model") and _measured(path) is not None:
            listed.append(_listed(name, model, path, free_bytes))
    return listed


def _in_cache(source: str | None, cached: Mapping[HubName, Path]) -> Path | None:
    """Return the file that a start without the hub would use."""
    if source is None:
        return None
    name = parse_hub_name(source)
    files = [each.file for each in cached if each.repo == name.repo and each.file is not None]
    file = name.file or preferred(files, name.quant)
    return None if file is None else cached.get(HubName(repo=name.repo, file=file))


def _packaged(name: str) -> Path | None:
    """Return an installed package's file, without building one."""
    model = PACKAGED.get(name)
    with contextlib.suppress(StartupError):
        if isinstance(model, PackagedModel) and model.package.is_installed:
            return model.path()
    return None


def expected_model(name: str, model: AliasedModel | None, size_bytes: int, free_bytes: int) -> ListedModel:
    model = model or AliasedModel(source=name, gigabytes=0)
    return _listed(name, msgspec.structs.replace(model, gigabytes=size_bytes / 1e9), None, free_bytes)


def _listed(name: str, model: AliasedModel, path: Path | None, free_bytes: int) -> ListedModel:
    is_packaged = name in PACKAGED and PACKAGED[name].package.is_installed
    size, cell = (path and _measured(path)) or (round(model.gigabytes * 1e9), model.cell_bytes)
    generates = model.kind is ModelKind.GENERATES
    state = round(model.state_mib * 2**20)
    taken = size + default_states_bytes(state, max(0, free_bytes - size))
    tokens = _pool_tokens(taken, cell, free_bytes) if generates else None
    return ListedModel(
        name=name,
        source=model.source,
        here="package" if is_packaged else "downloaded" if path is not None else None,
        kind=model.kind.value,
        size_bytes=size,
        kv_bytes_per_token=cell if generates else None,
        state_bytes=state,
        tool_format=model.tools,
        reasoning_format=model.thoughts,
        fits=taken < free_bytes if tokens is None else tokens > 0,
        pool_tokens=tokens or None,
    )


def _measured(path: Path) -> tuple[int, int] | None:
    """Return bytes of the file and of a token's cell, or None if unreadable."""
    try:
        header = GgufHeader(path)
        return total_bytes(model_files(header)), bytes_per_cell(header, KVType.F16)
    except StartupError:
        return None


def _pool_tokens(taken: int, cell: int | None, free_bytes: int) -> int | None:
    """Return 0 if the model does not fit, or None if the cell size is unknown."""
    if taken >= free_bytes:
        return 0
    if cell is None:
        return None
    try:
        return pool_cells(None, cell, free_bytes - taken)
    except StartupError:
        return 0


def rows(listed: Sequence[ListedModel]) -> list[tuple[str, ...]]:
    return [
        ("--model", "size", "fits", "KV tokens", "here", "kind", "tool calls", "thoughts"),
        *(
            (
                printable(each.name),
                bytes_text(each.size_bytes),
                "yes" if each.fits else "no",
                f"{each.pool_tokens:,}" if each.pool_tokens else "",
                each.here or "",
                each.kind,
                each.tool_format or "",
                each.reasoning_format or "",
            )
            for each in listed
        ),
    ]
