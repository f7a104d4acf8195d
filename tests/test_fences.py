"""Rules for imports: which module may import which. The tests parse the source and do not import it."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator

import pytest

from tests.trees import PACKAGE, Source, package

NAME = PACKAGE.name


def words(text: str) -> set[str]:
    return set(text.split())


ALLOWED = {
    "__init__": "",
    "__main__": "cli.main",
    # Below everything.
    "errors": "",
    "json_size": "errors",
    # Choice between callers that take turns: numbers only. Several packages use it, so it lies below them.
    "fairness": "",
    # Storage elsewhere, or where other users might read: it does not know the content.
    "storage": "",
    # Start and rights of processes with native code, for any purpose.
    "child_processes": "",
    "contract": "errors",
    # Options and their sources.
    "config": "contract errors",
    "config.adapters": "",
    "config.command_line": "errors",
    "config.folders": "errors storage.private_files",
    "config.routers": "models.routing.options",
    # Texts, templates, grammars, without processes, HTTP or an engine.
    "prompt": "contract.grammar contract.model_info contract.request errors json_size",
    "structured": "contract.grammar errors",
    # The engine's side. The scheduler has no backend, the core no llama.cpp; only `process` combines them.
    "scheduler": "contract fairness",
    "engine": "contract errors scheduler",
    "engine.process": "child_processes contract engine llama observe.logs storage.private_files",
    # Kernels in front of ggml, which the caller has loaded and passes in.
    "kernels": "contract",
    "llama": "contract errors kernels.graphs kernels.library kernels.proof storage.private_files",
    "model_source": "config.adapters config.folders contract.model_info errors llama.gguf",
    # The asyncio side of an engine. It knows the engine by the contract alone, and not the scheduler.
    "engine_client": "child_processes.spawn contract errors fairness",
    # The client of the processes that read texts with native code, and these processes.
    "reader": "child_processes.spawn contract errors fairness prompt",
    "reader.process": "child_processes contract errors llama prompt reader",
    "reader.grammars": "contract.grammar llama structured.compiler",
    # Several engines elsewhere: the pure choice between them, their clients, and the code that runs them.
    "replicas": "contract",
    "replicas.remote": "contract engine_client errors",
    "replicas.nodes": "contract engine_client",
    "replicas.host": "contract engine_client errors",
    # Assembly of API replicas and engine replicas, as `server` assembles one server.
    "replicas.ray": "config contract engine_client errors llama.host models observe reader.pool server "
    "storage.private_files",
    # Below `api`, which finds a model by the name in a body. It uses neither HTTP nor processes.
    "models": "contract errors prompt",
    # Below `api`, which knows it by the contract alone. It uses no model. One rule for addresses holds for
    # every URL of a client.
    "mcp_servers": ". child_processes.spawn contract errors http.fetching",
    # Below `api`, which queries it before it submits a call. It uses no HTTP, no model and no engine.
    "answers": "config.folders contract errors storage",
    # Beside `api`, which calls it. Batches use neither HTTP nor the engine: a callable runs the rows, which
    # `api` provides and `server` passes in.
    "jobs": "config.folders contract.figures errors json_size storage",
    # Below `api`, which reports requests to it. The engine's client reports steps through a protocol, and
    # provides the gauges. It does not use HTTP; no other package uses Prometheus or OpenTelemetry. Control
    # groups are read in `llama.host`, which does not load llama.cpp.
    "observe": ". contract errors llama.host",
    # The files of the page, without HTTP.
    "page": "",
    # HTTP: keys and routes, without the families of the API, which it gets as arguments.
    "http": ". contract errors fairness jobs.records json_size observe storage.breaker",
    "api": ". answers config.adapters contract errors http jobs json_size models observe page prompt",
    # Assembly of a server from settings. It may import everything below it except the engine's own code.
    "server": "answers api config contract engine_client errors http jobs llama.gguf llama.host "
    "llama.model.kv_size mcp_servers model_source models observe prompt reader replicas.nodes "
    "storage.private_files",
    # Commands import their packages late; each has its own list.
    "cli": ". errors",
    "cli.main": ". cli config.command_line config.folders errors kernels.library reader.child",
    "cli.serve": "config reader.child server",
    "cli.run": "cli config.command_line config.folders",
    "cli.client": "config.command_line config.folders errors",
    "cli.ps": "cli config.command_line",
    "cli.chat": "child_processes.signals cli config errors storage.private_files",
    "cli.key": "errors http.keys",
    "cli.grammar": "config.command_line contract.grammar errors llama.grammar.grammar_check structured",
    "cli.batch": "config contract errors jobs observe.logs server storage.private_files",
    "cli.ray": "config errors replicas.ray",
    "cli.tune": "child_processes.spawn config contract errors llama model_source",
    "cli.quantize": "child_processes.spawn cli config.command_line config.folders errors llama model_source",
    "cli.quantize_worker": "child_processes.signals errors llama.gguf.quantize",
    "cli.models": "config.command_line contract.model_info errors llama model_source",
    "cli.pull": "cli config.command_line contract.pull errors llama.host model_source",
    "cli.inspect": "config contract errors llama model_source prompt scheduler.cost_model",
}  # layer (or one file of it) -> imports allowed besides itself; "." is the package's own `__init__`

LIBRARIES_OF = {
    "api": "sse_starlette starlette pydantic",
    "http": "starlette uvicorn httptools websockets limits pydantic",
    "server": "uvicorn",
    "config": "pydantic pydantic_settings",
    "llama": "llama_cpp llguidance",
    "prompt": "jinja2",
    "answers": "redis sqlite3 sqlalchemy",
    "jobs": "sqlalchemy",
    "storage": "sqlite3 sqlalchemy",
    "model_source": "huggingface_hub",
    "observe": "prometheus_client opentelemetry",
    "mcp_servers": "mcp mcp_types httpx2",
    "cli": "rich",
}  # layer -> libraries that only the layers listed with them import
PURE = words("fairness scheduler structured replicas.autoscaling replicas.router")
ROOMS_UPWARDS = {
    "replicas": ("remote", "host", "ray"),
    "jobs": ("store", "run"),
    "structured": ("languages", "scalars", "gbnf", "writing", "lark", "schema", "logic", "values"),
}  # layer -> its rooms in order; a room imports only earlier ones, and some files of the layer's root
FOR_ALL_ROOMS = {
    "replicas": {"autoscaling", "router", "wire"},
    "jobs": {"records"},
    "structured": {"options"},
}


@functools.cache
def imports(module: str) -> tuple[str, ...]:
    """Return the modules that a module imports. `from package import module` imports a module too."""
    return tuple(imported(package()[module].nodes(ast.Import, ast.ImportFrom)))


def imported(nodes: Iterator[ast.Import | ast.ImportFrom]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                yield member if member.removeprefix(f"{NAME}.") in package() else str(node.module)


def entry_points(source: Source) -> Iterator[str]:
    """Yield the modules that are imported by name at a call: MODULE:FUNCTION."""
    for node in source.nodes(ast.Constant):
        if isinstance(node.value, str) and (match := re.fullmatch(rf"({NAME}[\w.]*):\w+", node.value)):
            yield match[1]


def within(name: str, allowed: str) -> bool:
    return name == allowed or (allowed != "" and name.startswith(allowed + "."))


def reached_from(*starts: str) -> set[str]:
    """Return all of our modules that are imported with these."""
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        module = waiting.pop()
        if module in seen or module not in package():
            continue
        seen.add(module)
        waiting.append(module.rpartition(".")[0])
        waiting += [name[len(NAME) + 1 :] for name in imports(module) if name.split(".")[0] == NAME]
    return seen


def rule_of(module: str) -> set[str]:
    """Return the rule of the module, or of the nearest folder around it."""
    while module not in ALLOWED:
        assert module, "each layer has a rule"
        module = module.rpartition(".")[0]
    return {name.rstrip(".") for name in words(ALLOWED[module])}


def test_layers_import_only_layers_below() -> None:
    for module, source in package().items():
        allowed = rule_of(module) | {module.split(".", maxsplit=1)[0]}
        for name in (*imports(module), *entry_points(source)):
            if name.split(".")[0] == NAME:
                inner = name[len(NAME) + 1 :]
                assert any(within(inner, a) for a in allowed), f"{module} imports {name}"


@pytest.mark.parametrize("layer", ROOMS_UPWARDS)
def test_rooms_of_a_layer_import_only_earlier_rooms(layer: str) -> None:
    rooms = ROOMS_UPWARDS[layer]
    inside = [name for name in package() if name.startswith(f"{layer}.")]
    assert {name.split(".")[1] for name in inside if name.count(".") > 1} == set(rooms)
    for module in inside:
        room = module.split(".")[1]
        below = {*rooms[: rooms.index(room) + 1], *FOR_ALL_ROOMS[layer]} if room in rooms else set()
        for name in imports(module) if below else ():
            if name.startswith(f"{NAME}.{layer}."):
                assert name.split(".")[2] in below, f"{module} imports {name}"


ADMINISTRATION = words("admin events")
"""Rooms of `api` that may import families, because no family imports them."""


def test_an_api_family_imports_no_other_and_shared_code_imports_none() -> None:
    for module in package():
        room = module.split(".")[1] if module.startswith("api.") else ""
        if room and room not in ADMINISTRATION | {"application"}:
            for name in imports(module):
                inner = name.removeprefix(f"{NAME}.").split(".")
                other = inner[1] if inner[0] == "api" and len(inner) > 2 else room
                assert other in {room, "generation"}, f"{module} imports {name}"


def test_params_and_generation_do_not_import_starlette() -> None:
    for module in ("api.generation.params", "api.generation.generation"):
        assert "starlette" not in roots(module)


def roots(module: str) -> set[str]:
    return {name.split(".")[0] for name in imports(module)}


def test_libraries_are_imported_in_their_layers_only() -> None:
    restricted = words(" ".join(LIBRARIES_OF.values()))
    for module in package():
        layer = module.split(".", maxsplit=1)[0]
        assert not (restricted - words(LIBRARIES_OF.get(layer, ""))) & roots(module), module


def test_the_api_process_imports_no_native_code() -> None:
    """Native code and templates run in a reader process, which may crash, and never in the API process."""
    reached = reached_from("server.run", "cli.serve", "replicas.ray.api_replica")
    assert "api.application" in reached
    assert "reader.pool" in reached
    for module in reached:
        assert not roots(module) & {"llama_cpp", "llguidance", "jinja2"}, module
    for interpreter in ("structured.compiler", "prompt.chat_template", "prompt.go_template"):
        assert interpreter not in reached, "clients' programs may take long: run them in a reader"


def test_a_reader_does_not_import_numpy_at_its_start() -> None:
    """Importing numpy takes 11 MiB and a tenth of a second in each reader."""
    for module in reached_from("reader.process", "reader.grammars"):
        at_the_top = (
            node for node in package()[module].nodes(ast.Import, ast.ImportFrom) if not node.col_offset
        )
        assert "numpy" not in {name.split(".")[0] for name in imported(at_the_top)}, module


def test_only_replicas_ray_imports_ray() -> None:
    importers = {module for module in package() if "ray" in roots(module)}
    assert importers
    assert all(module.startswith("replicas.ray.") for module in importers)


def test_llama_cpp_is_imported_without_its_package() -> None:
    """`import llama_cpp` runs the package, whose imports would delay every start."""
    assert {module for module in package() if "llama_cpp" in roots(module)} == {"llama.bindings"}


def test_pure_layers_use_the_standard_library_only_and_do_no_io() -> None:
    for module in package():
        if any(within(module, pure) for pure in PURE):
            # msgspec has values; referencing resolves references within a schema
            assert roots(module) <= {*sys.stdlib_module_names, "msgspec", "referencing", NAME}, module
            assert not roots(module) & words("time asyncio socket threading subprocess os logging"), module


def test_only_the_settings_read_the_environment() -> None:
    """Exceptions are the user's folders, and the environment that child processes inherit."""
    readers = words(
        "child_processes.spawn config.folders config.mcp config.parser config.settings config.sources"
    )
    for module, source in package().items():
        names = {node.attr for node in source.nodes(ast.Attribute)}
        assert module in readers or not names & {"environ", "getenv"}, module


def test_own_code_is_imported_at_the_top() -> None:
    for module, source in package().items():
        late = [
            node
            for node in source.nodes(ast.Import, ast.ImportFrom)
            for function in (source.nodes(ast.FunctionDef, ast.AsyncFunctionDef) if node.col_offset else ())
            if function.lineno < node.lineno <= (function.end_lineno or 0)
        ]
        assert [name for name in imported(iter(late)) if name.startswith(NAME)] == [], module
