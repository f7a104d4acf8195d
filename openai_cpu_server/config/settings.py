"""Options of all commands. Order: command line, environment (`OCS_*`), secret files, TOML file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainValidator,
    SecretStr,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    CliSuppress,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from openai_cpu_server.config.adapters import AdapterOption, parse_adapter
from openai_cpu_server.config.folders import expanded_path, user_cache_dir
from openai_cpu_server.config.mcp import McpOptions
from openai_cpu_server.config.models import (
    ENGINE_DEFAULTS,
    OF_SERVERS,
    ModelOptions,
    ModelTable,
    PriceTable,
    fields_for,
    of_servers,
    one_or_more,
)
from openai_cpu_server.config.routers import Bounded, Table
from openai_cpu_server.config.sources import ENV_PREFIX, ConfigFile, EnvironmentVariables, SecretFiles
from openai_cpu_server.contract.messages import AS_SERVED, BY_DEFAULT, EngineOptions, Experiment, Scheduling
from openai_cpu_server.contract.model_info import Adapter

_Network = Annotated[IPv4Network | IPv6Network, PlainValidator(ip_network)]
_SWITCHES = {"on": True, "off": False}
_EXPERIMENTS = Experiment.__struct_fields__


def _experiment(value: object) -> Experiment:
    """Parse NAME=on and NAME=off, separated by commas."""
    if isinstance(value, Experiment):
        return value
    pairs = [pair.partition("=")[::2] for pair in str(value).split(",")]
    unknown = [name for name, value in pairs if name not in _EXPERIMENTS or value not in _SWITCHES]
    if unknown:
        raise ValueError(f"expected on or off for one of {', '.join(_EXPERIMENTS)}")
    return Experiment(**{name: _SWITCHES[value] for name, value in pairs})


def _own_host(text: str) -> str:
    try:
        parts = urlsplit(f"//{text}")
        if not parts.hostname or "*" in text or parts.netloc != text or parts.username is not None:
            raise ValueError
        _ = parts.port
    except ValueError:
        raise ValueError("a host is HOST or HOST:PORT, such as 'nas.lan' or 'minio:9000'") from None
    return text.lower()


OwnHost = Annotated[str, AfterValidator(_own_host)]


def _host_name(text: str) -> str:
    if text != "*" and not re.fullmatch(r"[0-9A-Za-z._-]+", text):
        raise ValueError("expected a name, without http:// and without a port")
    return text.lower().rstrip(".")


def _origin(text: str) -> str:
    if text not in ("*", "null") and not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@*\s]+", text):
        raise ValueError(f"expected SCHEME://HOST[:PORT] without a path, or *, not {text!r}")
    return text


class RayTable(Table):
    """`[ray]` of the TOML file: number and resources of replicas with Ray Serve."""

    address: str | None = Field(
        None, description="the cluster, such as auto; default: RAY_ADDRESS, else a new one"
    )
    name: str = Field("openai-cpu-server", min_length=1, description="name of the Serve application")
    replicas: int = Field(1, ge=1, description="minimum number of engine replicas of each model")
    max_replicas: int | None = Field(
        None,
        ge=1,
        description="maximum number of engine replicas of each model; default: as many as 'replicas'",
    )
    cpus: float = Field(
        1.0,
        gt=0,
        description="CPUs of each engine replica; a whole number reserves as many CPUs for its threads",
    )
    memory_gb: float | None = Field(
        None, gt=0, description="memory of each engine replica; default: nothing is reserved"
    )
    resources: dict[str, float] = Field(
        {}, description="other resources that an engine replica's node must have, by Ray's names"
    )
    one_per_node: bool = Field(False, description="at most one engine replica of a model on each node")
    pin: Literal["auto", "off"] = Field(
        "auto",
        description="auto: engine replicas divide a node's CPUs, each on as few NUMA nodes as possible",
    )
    api_replicas: int = Field(1, ge=1, description="number of processes that clients connect to")
    ingress: Literal["replicas", "proxy"] = Field(
        "replicas",
        description="listeners: API replicas, each on its node, or Ray Serve's proxies, on every node",
    )
    api_cpus: float = Field(0.25, ge=0, description="CPUs of each API replica, for placement only")
    target_wait_ms: float = Field(
        1000.0,
        gt=0,
        description="predicted wait of a new interactive request above which replicas are added",
    )
    up_after_s: float = Field(
        15.0, ge=0, description="seconds that more replicas must be needed before they are started"
    )
    down_after_s: float = Field(
        300.0, ge=0, description="seconds that fewer replicas must suffice before some are ended"
    )
    lease_s: float = Field(
        8.0,
        ge=1,
        description="seconds of silence of an API replica after which an engine replica ends its requests; "
        "after half of it without an answer, the API replica replays them elsewhere",
    )
    drain_s: float = Field(120.0, gt=0, description="seconds that a stopping replica has to end its requests")
    health_s: float = Field(5.0, gt=0, description="seconds between Ray's health checks of each replica")
    retry_s: float = Field(
        30.0,
        gt=0,
        description="seconds after which an engine replica is replaced if its model cannot be loaded",
    )

    @model_validator(mode="after")
    def _at_most_is_not_less(self) -> RayTable:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError("max_replicas is less than replicas")
        return self

    @property
    def most_replicas(self) -> int:
        return self.max_replicas or self.replicas


class WhatToServe(BaseModel):
    """Models to serve, and how many of them at once."""

    config: Path | None = Field(None, description="TOML file with any of these options (kv_type = ...)")
    model: Annotated[list[str], NoDecode, BeforeValidator(one_or_more)] = Field(
        [],
        description="[NAME=]PATH, hf:OWNER/REPO[/FILE], demo, or a name such as qwen3.5-4b (the command "
        "models lists them); may be given several times; default: smollm2 from its package, else demo",
    )
    models: CliSuppress[dict[str, ModelTable]] = Field(
        {}, description="[models.NAME] of the TOML file, each with source and any option of one model"
    )
    aliases: CliSuppress[dict[str, str]] = Field(
        {}, description="[aliases] of the TOML file: further names of models, or of other aliases"
    )
    ray: CliSuppress[RayTable] = of_servers(
        RayTable.model_validate({}),
        description="[ray] of the TOML file: replicas on Ray Serve, for `openai-cpu-server ray`",
    )
    served_model_name: str | None = Field(
        None, description="name of the only model in the API; default: the alias, or the file's name"
    )
    any_model_name: bool = Field(
        False,
        description="an unknown model name means the first suitable model, as in llama-server",
    )
    memory: int | None = Field(
        None,
        ge=1,
        description="MiB for all models: weights, KV cells, buffers and prefix caches; if a model needs "
        "room, the least recently used one is unloaded; default: with several models four "
        "fifths of the free memory",
    )
    idle_unload: float | None = Field(
        None, gt=0, description="seconds without a request after which a model is unloaded; default: never"
    )


class Settings(McpOptions, ModelOptions, WhatToServe, Bounded, BaseSettings):
    """Serve a GGUF model behind the OpenAI API."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        extra="forbid",
        allow_inf_nan=False,
    )

    host: str = of_servers("127.0.0.1", description="address to listen on")
    port: int = of_servers(8000, ge=0, le=65535, description="port to listen on; 0 picks one")
    api_key: SecretStr | None = of_servers(
        None,
        description="require this key (Authorization: Bearer, or x-api-key). Other users of the machine can "
        "see arguments in the list of processes: prefer OCS_API_KEY, or a file in "
        "OCS_SECRETS_DIR",
    )
    api_keys: Path | None = of_servers(
        None, description="TOML file of keys, [keys.NAME] with sha256 and limits; read again on SIGHUP"
    )
    open_to_gateways: bool = of_servers(
        False,
        description="GET /version and /metrics/gateway need no key, and GET /metrics without a key returns "
        "the metrics of gateways, for scrapers that cannot send one",
    )
    limits_url: SecretStr | None = of_servers(
        None, description="count the use of keys in redis://HOST:PORT; default: in this process"
    )
    cors_origin: list[Annotated[str, AfterValidator(_origin)]] = of_servers(
        [],
        description="web pages of this origin may call the server; * means all; may be given several times",
    )
    allowed_host: list[Annotated[str, AfterValidator(_host_name)]] = of_servers(
        [],
        description="clients may call the server by this host name, beside addresses, localhost and the "
        "name in --host; * means any; may be given several times; default: none if it listens "
        "on a loopback address, else any",
    )
    open_admin: bool = of_servers(
        False,
        description="without keys, clients on other machines are administrators too: they may load and "
        "unload models and adapters, empty caches, and see and end all requests",
    )
    trusted_proxy: list[_Network] = of_servers(
        [],
        description="trust this proxy (ADDRESS or NETWORK) to name the addresses of clients; may be given "
        "several times",
    )
    ssl_certfile: Path | None = of_servers(None, description="serve HTTPS with this certificate (PEM)")
    ssl_keyfile: Path | None = of_servers(
        None, description="private key of the certificate; default: in the certificate's file"
    )
    ssl_keyfile_password: SecretStr | None = of_servers(
        None, description="password of an encrypted private key"
    )
    stream_rate: float = Field(
        BY_DEFAULT.stream_rate,
        gt=0,
        description="tokens per second that an interactive stream keeps while other prompts are computed, "
        "if the machine is fast enough",
    )
    stall_ms: float = Field(
        BY_DEFAULT.stall_ms,
        gt=0,
        description="longest gap in milliseconds between two tokens of an interactive stream, while a new "
        "prompt is computed and the stream was faster than --stream-rate before",
    )
    batch_stall_ms: float = Field(
        BY_DEFAULT.batch_stall_ms,
        gt=0,
        description="the same without interactive streams: longer steps have more throughput",
    )
    batch_floor: float = Field(
        BY_DEFAULT.batch_floor,
        ge=0,
        le=1,
        description="share of slots and time that batch work keeps under any interactive load",
    )
    preempt_threshold_ms: float = Field(
        BY_DEFAULT.preempt_threshold_ms,
        ge=0,
        description="milliseconds that a new interactive request waits for batch work: it interrupts a "
        "batch step that has more left, and beside interactive streams batch work makes no step "
        "longer",
    )
    policy: Literal["priority", "fifo", "sjf"] = Field(
        BY_DEFAULT.policy,
        description="order of requests; priority: interactive requests, and clients take turns; fifo: order "
        "of arrival; sjf: the shortest expected output, learned by route and client",
    )
    numa: bool = of_servers(
        False,
        description="run an engine on each NUMA node, with memory of that node; a request goes to the node "
        "that has its prompt, or to a less busy one; for a server with one model",
    )
    numa_folder: CliSuppress[Path | None] = of_servers(None)
    """Simulated NUMA nodes, for tests."""
    url_fd: CliSuppress[int | None] = of_servers(None)
    """Pipe for the server's URL, for `chat`."""
    experiment: CliSuppress[Annotated[Experiment, PlainValidator(_experiment)]] = AS_SERVED
    """Internal: without a description it appears in no list of options."""
    adapter: list[Annotated[AdapterOption, PlainValidator(parse_adapter)]] = Field(
        [],
        description="load a LoRA adapter, [MODEL/]NAME=PATH[@SCALE]; requests name it as MODEL:NAME; may be "
        "given several times",
    )
    models_dir: Path | None = of_servers(
        None,
        description="serve the models in this folder and two levels of folders below; the first request for "
        "a model loads it",
    )
    allow_pull: bool = of_servers(
        False,
        description="administrators may download models from the hub while the server runs, remove them, "
        "and create names (POST /v1/models/pull; Ollama's pull, create, copy, delete); the next "
        "start reads them from models.json in the user's data directory",
    )
    adapter_dir: Path | None = of_servers(
        None,
        description="POST /v1/adapters may load files from this folder and from the hub; default: none",
    )
    cache_isolation: Literal["off", "key"] | None = of_servers(
        None,
        description="key: requests of different API keys share no computed prompts, so that none can find "
        "out the prompts of another; off: they share; default: key if there are keys",
    )
    answer_cache: SecretStr | None = of_servers(
        None,
        description="repeat answers to the same question, stored in: on (answers.db in the user's data "
        "directory), memory, PATH of a SQLite file, or redis://HOST:PORT; default: every answer "
        "is computed",
    )
    answer_cache_ttl: float = of_servers(
        86_400.0, gt=0, description="seconds after which a stored answer expires"
    )
    answer_cache_mb: int = of_servers(
        256, ge=1, description="MiB of the cache of answers; the least recently used answer is evicted first"
    )
    semantic_cache: float | None = of_servers(
        None,
        gt=0,
        le=1,
        description="repeat answers to similar questions too: the cosine from which two last user turns "
        "count as the same, such as 0.95; sometimes wrong. Implies --answer-cache on",
    )
    semantic_cache_model: str | None = of_servers(
        None, description="model that embeds the turns; default: the only one that embeds"
    )
    cache_dir: Path | None = Field(
        None,
        description="folder of measured costs and profiles; default: the folder measured in the user's "
        "cache directory",
    )
    calibrate: Literal["idle", "start", "never"] = Field(
        ENGINE_DEFAULTS.calibrate,
        description="when the cost of steps is measured, once for each model: while the server is idle, "
        "during the first start, or never, with the costs of an earlier start only",
    )
    default_priority: Literal["interactive", "batch"] = of_servers(
        "interactive", description="priority of requests that set none"
    )
    max_queue: int = Field(
        1000,
        ge=1,
        description="maximum number of waiting requests of one priority; more get 429, unless their client "
        "has less than an equal share of them",
    )
    max_choices: int = Field(64, ge=1, description="largest n and best_of")
    max_body_mb: int = Field(32, ge=1, description="largest request body; larger ones get 413")
    max_bodies_mb: int = of_servers(
        256,
        ge=1,
        description="limit for all bodies in memory together, not counting 64 KiB of each; more get 503. At "
        "least --max-body-mb",
    )
    max_picture_mb: int = Field(20, ge=1, description="largest picture, encoded; larger ones get 400")
    max_picture_pixels: int = Field(
        40_000_000,
        ge=1,
        description="maximum number of pixels of a picture; larger ones are refused before they are decoded",
    )
    max_sound_mb: int = Field(25, ge=1, description="largest sound, encoded; larger ones get 400")
    max_sound_seconds: int = Field(
        7200, ge=1, description="maximum seconds of sound in a conversation; more are refused while decoding"
    )
    allowed_media_domain: list[str] = Field(
        [],
        description="fetch pictures and sounds from URLs of this domain; `*.example.org` means all domains "
        "below, `*` any; private addresses are always refused; may be given several times; "
        "default: fetch none",
    )
    allowed_media_host: list[OwnHost] = Field(
        [],
        description="fetch them also from this host, which may have a private address, such as `nas.lan`, "
        "`minio:9000`; without a port from the usual one; may be given several times",
    )
    media_dir: Path | None = Field(
        None, description="folder of pictures and sounds that `file:` URLs may name"
    )
    max_prompt_tokens: int | None = Field(
        None, ge=1, description="longest prompt in tokens; longer ones get 400; default: the context"
    )
    output_token_cap: int | None = Field(
        None,
        ge=1,
        description="largest output limit of a request; larger ones get 400; also the longest output of a "
        "choice without a limit; default: the context",
    )
    end_loops: bool = Field(
        True,
        description="end an answer whose last thousand tokens only repeat a passage, as if its limit were "
        "reached; off: it continues to its limit",
    )
    request_timeout: float | None = of_servers(
        None,
        gt=0,
        description="seconds that a call may take, including its time in the queue; default: no limit",
    )
    max_connections: int = of_servers(
        4096,
        ge=1,
        description="maximum number of connections; more get 503 (/health and /ready still answer). Needs "
        "as many open files and 128 more",
    )
    read_timeout_s: float = of_servers(
        30.0,
        gt=0,
        description="seconds to receive the headers of a request; its body has 1 s more for each KiB",
    )
    idle_timeout_s: float = of_servers(
        75.0,
        gt=0,
        description="seconds that a connection without a request stays open; should be longer than in "
        "proxies and clients, which would otherwise send a request as it closes",
    )
    write_timeout_s: float = of_servers(
        30.0, gt=0, description="seconds after which a client that reads nothing is disconnected"
    )
    stream_buffer_mb: int = Field(
        4,
        ge=1,
        description="MiB buffered for a client that reads more slowly than its call generates; beyond, the "
        "call ends",
    )
    jobs_db: SecretStr | None = of_servers(
        None,
        description="database of files, batches and responses: PATH of a SQLite file, postgresql://..., or "
        "none, which disables them; default: jobs.db in the user's data directory",
    )
    prices: CliSuppress[dict[str, PriceTable]] = of_servers(
        {}, description="[prices.MODEL] of the TOML file: the price of a million tokens, for GET /v1/usage"
    )
    response_days: float = of_servers(
        30.0,
        gt=0,
        le=3650,
        description="days after which a stored response of /v1/responses is deleted, and a conversation "
        "after its last item",
    )
    max_file_mb: int = of_servers(200, ge=1, description="largest file of /v1/files")
    max_batch_rows: int = Field(50_000, ge=1, description="maximum number of requests in a batch")
    batch_concurrency: int = Field(32, ge=1, description="maximum number of batch rows that run at once")
    resume_seconds: float = of_servers(
        300.0,
        ge=0,
        le=3600,
        description="seconds that a stream with the header X-Conversation-Id continues without its client, "
        "and that it is kept after its end; 0: it ends with its connection",
    )
    drain_seconds: float = of_servers(
        30.0, ge=0, description="seconds that running requests have to end after the first SIGTERM or Ctrl-C"
    )
    hang_seconds: float = Field(
        60.0,
        ge=0,
        description="seconds without progress after which an engine counts as hung, or 300 "
        "times a step's predicted time if that is longer; 0: never",
    )
    load_hang_seconds: float = Field(
        1800.0,
        ge=0,
        description="the same while the model is being loaded and its steps are measured; 0: never",
    )
    sandbox: Literal["auto", "off"] = Field(
        ENGINE_DEFAULTS.sandbox,
        description="auto: processes that run native code can open only the files that they need, create no "
        "sockets and start no programs, as far as the kernel supports it; off: they have all "
        "rights of the server",
    )
    max_crashes_per_minute: int = Field(
        5,
        ge=1,
        description="crashes within a minute after which the engine is given up; SIGKILLs after progress, "
        "and crashes that a request has caused, do not count",
    )
    keep_alive_s: float = of_servers(10.0, ge=0, description="seconds between comments on a silent stream")
    page: bool = of_servers(True, description="page for browsers at /: a chat, and a view of the scheduler")
    lenient: bool = Field(
        False,
        description="ignore unknown parameters and name them in a header; -1 output tokens mean no limit",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        ENGINE_DEFAULTS.log_level, description="lowest level that is logged"
    )
    log_format: Literal["console", "json"] = Field("console", description="json: one object on each line")
    otel_endpoint: str | None = of_servers(
        None,
        description="send traces to the OpenTelemetry collector at this URL (OTLP over HTTP); "
        "default: OTEL_EXPORTER_OTLP_ENDPOINT, else none",
    )

    @model_validator(mode="after")
    def _contradicts_nothing(self) -> Settings:
        if self.ssl_certfile is None and (self.ssl_keyfile or self.ssl_keyfile_password) is not None:
            raise ValueError("--ssl-keyfile and --ssl-keyfile-password need --ssl-certfile")
        usual = [self.max_output_tokens, *(table.max_output_tokens for table in self.models.values())]
        if self.output_token_cap is not None and max(filter(None, usual), default=0) > self.output_token_cap:
            raise ValueError("--max-output-tokens, or that of a model, is above --output-token-cap")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **others: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        ours = (EnvironmentVariables(settings_cls), SecretFiles(settings_cls), ConfigFile(settings_cls))
        return (init_settings, *ours)

    @property
    def isolates_by_key(self) -> bool:
        """Requests of different API keys share no prompt cache."""
        if self.cache_isolation is not None:
            return self.cache_isolation == "key"
        return self.api_key is not None or self.api_keys is not None

    def engine_options(
        self,
        model_path: Path,
        *,
        cache_bytes: int,
        draft_model_path: Path | None = None,
        projector_path: Path | None = None,
        adapters: tuple[Adapter, ...] = (),
        adapter_folders: tuple[Path, ...] = (),
        pinned_prompts: tuple[tuple[int, ...], ...] = (),
        pinned_namespace: str = "",
        of: ModelOptions | None = None,
    ) -> EngineOptions:
        """`cache_bytes`: `cache_mb` on this machine. `of`: this model's own options."""
        fields = {
            **fields_for(EngineOptions, self, of=Settings),
            **(of or self).engine_fields,
            "scheduling": self.scheduling,
            "model_path": str(model_path),
            "draft_model_path": str(draft_model_path) if draft_model_path else None,
            "projector_path": str(projector_path) if projector_path else None,
            "adapters": adapters,
            "adapter_folders": tuple(map(str, adapter_folders)),
            "cache_bytes": cache_bytes,
            "pinned_prompts": pinned_prompts,
            "pinned_namespace": pinned_namespace,
            "cost_dir": str(self.profile_dir),
        }
        return msgspec.convert(fields, EngineOptions)

    @property
    def scheduling(self) -> Scheduling:
        return msgspec.convert(fields_for(Scheduling, self, of=Settings), Scheduling)

    @property
    def profile_dir(self) -> Path:
        """Folder that engines may write to, so it holds no models or wheels."""
        return expanded_path(self.cache_dir) if self.cache_dir else user_cache_dir() / "measured"

    @property
    def traces_endpoint(self) -> str | None:
        """URL of the collector, by default from OpenTelemetry's variable."""
        return self.otel_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None


def revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None


OPTIONS_OF_SERVERS = frozenset(
    name
    for name, field in Settings.model_fields.items()
    if isinstance(field.json_schema_extra, dict) and OF_SERVERS in field.json_schema_extra
)
"""Options that other commands ignore in the environment or a shared file."""


OPTION_GROUPS = {
    "config": "Models",
    "temperature": "A model: defaults of requests",
    "chat_template": "A model: answers",
    "ctx_size": "A model: memory and threads",
    "speculation": "A model: speculation",
    "gpu_layers": "A model: a device beside the CPU",
    "mmproj": "A model: pictures and sounds",
    "cache_mb": "A model: prefix cache",
    "mcp": "Tools of MCP servers",
    "host": "Address, keys and HTTPS",
    "stream_rate": "Engines: steps and priorities",
    "adapter": "Adapters, and models that come later",
    "cache_isolation": "Engines: prefix cache",
    "answer_cache": "Cache of answers",
    "cache_dir": "Measured costs",
    "default_priority": "Limits for requests",
    "max_connections": "Connections",
    "jobs_db": "Batch jobs",
    "drain_seconds": "Stop, hang and crash",
    "keep_alive_s": "Streams, log and traces",
}
"""First option of each group, in the order of `Settings`, and its heading in help and manual."""


def grouped_options() -> Iterator[tuple[str, list[str]]]:
    """Yield headings and options, without internal ones."""
    names = [name for name, field in Settings.model_fields.items() if field.description]
    starts = [*map(names.index, OPTION_GROUPS), len(names)]
    for heading, begin, end in zip(OPTION_GROUPS.values(), starts, starts[1:], strict=False):
        yield heading, names[begin:end]
