"""All options, once. The command line goes before the environment (`OCS_*`), that before a TOML file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PlainValidator, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from openai_cpu_server.adapter_options import AdapterOption, parse_adapter
from openai_cpu_server.contract.adapter import Adapter
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import StartupError
from openai_cpu_server.option_parser import OptionParser, add_option

_PROGRAM = "openai-cpu-server serve"
_ENV_PREFIX = "OCS_"
_MAX_THREADS = 512
"""llama.cpp's own limit."""
_PASSED_ON = {
    "max_seqs",
    "threads",
    "threads_batch",
    "flash_attention",
    "kernels",
    "prefill_tokens",
    "stream_rate",
    "stall_ms",
    "batch_stall_ms",
    "batch_floor",
    "preempt_threshold_ms",
    "policy",
    "tile_filling",
    "mixed_steps",
    "continuous_batching",
    "speculation",
    "draft_max",
    "prefix_sharing",
    "log_level",
}
"""Options that the engine knows by the same name."""
_REPLACED = {"interactive_step_ms": "--stream-rate and --stall-ms", "batch_step_ms": "--batch-stall-ms"}
"""Names of options that are gone -> what says the same now."""


Network = Annotated[IPv4Network | IPv6Network, PlainValidator(ip_network)]


_ENGINE = EngineOptions(model_path="")
"""Its defaults are those of the options that the engine knows by the same name."""


class Settings(BaseSettings):
    """Serve a GGUF model behind the OpenAI API."""

    model_config = SettingsConfigDict(
        env_prefix=_ENV_PREFIX,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        extra="forbid",
    )

    config: Path | None = Field(None, description="TOML file with any of these options (kv_type = ...)")
    model: str | None = Field(
        None,
        description="PATH, hf:OWNER/REPO[/FILE], an alias such as smollm2 or mistral-7b, or demo; "
        "default: smollm2 from its package, else demo",
    )
    served_model_name: str | None = Field(
        None, description="name in the API; default: the alias, or the file's name"
    )
    chat_template: Path | None = Field(None, description="jinja2 file to use instead of the model's own")
    tool_format: Literal["auto", "demo", "mistral", "hermes", "llama3"] = Field(
        "auto",
        description="how the model writes tool calls; default: as its chat template says, or hermes if that "
        "knows no tools",
    )
    json_whitespace: Literal["compact", "flexible"] = Field(
        "compact", description="white space that the model may write in JSON output"
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 picks one")
    api_key: SecretStr | None = Field(
        None, description="require this key (Authorization: Bearer, or x-api-key)"
    )
    api_keys: Path | None = Field(
        None, description="TOML file of keys, [keys.NAME] with sha256 and limits; read again on SIGHUP"
    )
    limits_url: SecretStr | None = Field(
        None, description="count what keys use in redis://HOST:PORT; default: in this process"
    )
    cors_origin: list[str] = Field(
        [], description="pages of this origin may call from a browser; * is all; may be given several times"
    )
    trusted_proxy: list[Network] = Field(
        [],
        description="believe this proxy (ADDRESS or NETWORK) about where requests come from; "
        "may be given several times",
    )
    ssl_certfile: Path | None = Field(None, description="serve HTTPS with this certificate (PEM)")
    ssl_keyfile: Path | None = Field(None, description="its key; default: in the certificate's file")
    ssl_keyfile_password: SecretStr | None = Field(None, description="of an encrypted key")
    ctx_size: int | None = Field(
        None,
        ge=256,
        description="tokens of the KV pool; default: half of the memory beside the weights, at most 16384",
    )
    max_seqs: int = Field(
        _ENGINE.max_seqs,
        ge=1,
        le=254,
        description="sequences that run at once",
    )
    threads: int | None = Field(
        None, ge=1, le=_MAX_THREADS, description="compute threads; default: physical cores"
    )
    threads_batch: int | None = Field(
        None,
        ge=1,
        le=_MAX_THREADS,
        description="threads for steps of more than one token; default: as --threads",
    )
    flash_attention: bool = Field(True, description="off: slower with long contexts")
    profile: Literal["auto", "off"] = Field(
        "auto", description="use what `openai-cpu-server tune` has found, for options that are not given"
    )
    kv_type: Literal["auto", "f32", "f16", "bf16", "q8_0"] = Field(
        "auto", description="type of KV cells; auto is f16"
    )
    repack: Literal["auto", "on", "off"] = Field(
        "auto",
        description="repack weights for this CPU at load: faster alone, slower in batches for K-quants",
    )
    kernels: Literal["auto", "off"] = Field(
        _ENGINE.kernels,
        description="off: ggml computes everything; auto: our kernels do what they are proved for",
    )
    prefill_tokens: int = Field(
        _ENGINE.prefill_tokens,
        ge=16,
        description="tokens of a step at most (llama.cpp's batch)",
    )
    stream_rate: float = Field(
        _ENGINE.stream_rate,
        gt=0,
        description="tokens per second that an interactive stream keeps at least while others' prompts are "
        "read, where the machine is fast enough",
    )
    stall_ms: float = Field(
        _ENGINE.stall_ms,
        gt=0,
        description="longest gap between two tokens of an interactive stream, in milliseconds: a stream that "
        "was faster than --stream-rate waits so long for a prompt that comes",
    )
    batch_stall_ms: float = Field(
        _ENGINE.batch_stall_ms,
        gt=0,
        description="the same while there is no interactive stream: longer steps bring more throughput",
    )
    batch_floor: float = Field(
        _ENGINE.batch_floor,
        ge=0,
        le=1,
        description="share of slots and time that batch work keeps beside endless interactive requests",
    )
    preempt_threshold_ms: float = Field(
        _ENGINE.preempt_threshold_ms,
        ge=0,
        description="milliseconds that an interactive newcomer waits for batch work: it interrupts a batch "
        "step that has more left, and beside interactive streams batch work makes no step longer",
    )
    policy: Literal["priority", "fifo", "sjf"] = Field(
        "priority",
        description="who goes first; priority: interactive requests, and clients take turns; fifo: who came "
        "first; sjf: the shortest expected output, learned by route and client",
    )
    tile_filling: bool = Field(True, description="grow steps to sizes that are faster (off: for comparison)")
    mixed_steps: bool = Field(
        True, description="prompts and decoding sequences share steps (off: for comparison)"
    )
    continuous_batching: bool = Field(
        True, description="newcomers join between steps (off: they wait for the whole batch, for comparison)"
    )
    speculation: Literal["auto", "off", "always"] = Field(
        "auto",
        description="verify several likely tokens of a sequence in one step, the answers stay the same; "
        "auto: where that is predicted to be faster; always: for comparison",
    )
    draft_model: str | None = Field(
        None, description="a small model with the same tokenizer that drafts too; named as --model is"
    )
    adapter: list[Annotated[AdapterOption, PlainValidator(parse_adapter)]] = Field(
        [],
        description="load a LoRA adapter, [MODEL/]NAME=PATH[@SCALE]; requests ask for it as MODEL:NAME; "
        "may be given several times",
    )
    adapter_dir: Path | None = Field(
        None,
        description="POST /v1/adapters may load files of this folder, and of the hub; default: it may load "
        "nothing",
    )
    draft_max: int = Field(
        _ENGINE.draft_max,
        ge=1,
        description="tokens that one sequence drafts in a step at most",
    )
    prefix_sharing: bool = Field(True, description="compute a common prompt once (off: for comparison)")
    cache_mb: int | None = Field(
        None,
        ge=0,
        description="host memory of the prefix cache, 0: none; default: a quarter of the machine's",
    )
    cache_file: Path | None = Field(None, description="keep the prefix cache here between runs")
    pin_prompt: list[Path] = Field(
        [],
        description="compute the prompt in this file at start and never evict it; may be given several times",
    )
    cache_isolation: Literal["off", "key"] = Field(
        "off", description="key: requests of different API keys share no computed prompts"
    )
    cache_dir: Path | None = Field(
        None, description="where measured costs and profiles are kept; default: the user's cache directory"
    )
    calibrate: Literal["idle", "start", "never"] = Field(
        _ENGINE.calibrate,
        description="when the cost of steps is measured, once for a model: while nobody wants anything, "
        "before the first start is over, or never: then what an earlier start has kept is used",
    )
    default_priority: Literal["interactive", "batch"] = Field(
        "interactive", description="priority of requests that name none"
    )
    max_queue: int = Field(1000, ge=1, description="requests of one priority that may wait; beyond: 429")
    max_choices: int = Field(64, ge=1, description="largest n and best_of")
    max_body_mb: int = Field(32, ge=1, description="largest request body, larger ones get 413")
    max_bodies_mb: int = Field(
        256,
        ge=1,
        description="bodies that are being read, all together, but for 64 KiB of each; beyond: 503. "
        "At least --max-body-mb",
    )
    max_prompt_tokens: int | None = Field(
        None, ge=1, description="longest prompt, longer ones get 400; default: the context"
    )
    max_output_tokens: int | None = Field(
        None,
        ge=1,
        description="longest output of a choice, also of one that names no max_tokens; default: the context",
    )
    request_timeout: float | None = Field(
        None, gt=0, description="seconds that a call may take, waiting included; default: no limit"
    )
    max_connections: int = Field(
        4096,
        ge=1,
        description="connections; beyond: 503 (/health and /ready still answer). "
        "Needs as many open files and 128 more",
    )
    read_timeout_s: float = Field(
        30.0, gt=0, description="seconds for the headers of a request, and for its body with 1 s per KiB more"
    )
    write_timeout_s: float = Field(
        30.0, gt=0, description="a client that reads nothing for so many seconds is dropped"
    )
    stream_buffer_mb: int = Field(
        4,
        ge=1,
        description="held for a client that reads slower than its call generates; beyond: its call ends",
    )
    jobs_db: SecretStr | None = Field(
        None,
        description="files and batches: PATH of a SQLite file, postgresql://..., or none for no batch API; "
        "default: jobs.db in the user's data directory",
    )
    max_file_mb: int = Field(200, ge=1, description="largest file of /v1/files")
    max_batch_rows: int = Field(50_000, ge=1, description="requests of one batch")
    batch_concurrency: int = Field(32, ge=1, description="rows of batches that run at once")
    drain_seconds: float = Field(
        30.0, ge=0, description="what running requests get to end after the first SIGTERM or Ctrl-C"
    )
    hang_seconds: float = Field(
        60.0, ge=0, description="without progress, or 300 times a step's expected time: a hang; 0: never"
    )
    load_hang_seconds: float = Field(
        1800.0, ge=0, description="the same while the model is loaded and its steps are measured; 0: never"
    )
    max_crashes_per_minute: int = Field(
        5, ge=1, description="of the engine; then it is given up. SIGKILLs after progress do not count"
    )
    keep_alive_s: float = Field(10.0, ge=0, description="seconds between comments on a silent stream")
    lenient: bool = Field(False, description="ignore unknown parameters and name them in a header")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level shown")
    log_format: Literal["console", "json"] = Field("console", description="json: an object a line")
    otel_endpoint: str | None = Field(
        None,
        description="send traces to the OpenTelemetry collector at this URL (OTLP over HTTP); "
        "default: OTEL_EXPORTER_OTLP_ENDPOINT, else none",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def engine_options(
        self,
        model_path: Path,
        *,
        cache_bytes: int,
        draft_model_path: Path | None = None,
        adapters: tuple[Adapter, ...] = (),
        pinned_prompts: tuple[tuple[int, ...], ...] = (),
        pinned_namespace: str = "",
    ) -> EngineOptions:
        """`cache_bytes`: what `cache_mb` comes to on this machine."""
        return EngineOptions(
            **self.model_dump(include=_PASSED_ON),
            model_path=str(model_path),
            draft_model_path=str(draft_model_path) if draft_model_path else None,
            adapters=adapters,
            kv_tokens=self.ctx_size,
            kv_type="f16" if self.kv_type == "auto" else self.kv_type,
            repack={"auto": None, "on": True, "off": False}[self.repack],
            cache_bytes=cache_bytes,
            cache_file=str(self.cache_file) if self.cache_file else None,
            pinned_prompts=pinned_prompts,
            pinned_namespace=pinned_namespace,
            cost_dir=str(self.profile_dir),
            calibrate=self.calibrate,
        )

    @property
    def profile_dir(self) -> Path:
        return self.cache_dir or user_cache_dir()

    @property
    def traces_endpoint(self) -> str | None:
        """Where traces go; OpenTelemetry's own variable counts where nothing else is said."""
        return self.otel_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None

    @property
    def priority(self) -> Priority:
        return Priority[self.default_priority.upper()]


def revealed(secret: SecretStr | None) -> str | None:
    """The secret itself, for somebody who needs it and does not write it anywhere."""
    return secret.get_secret_value() if secret else None


def user_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "openai-cpu-server"


def user_data_dir() -> Path:
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "openai-cpu-server"


HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""glibc reads it when a process starts: large allocations lie in huge pages, where the system lets them."""


def tune_engines() -> None:
    """Lets engines of this process inherit what makes steps fast, where a user has not said otherwise.

    Compute threads spin for longer than the pause between two operations of a step, so no step gets slower,
    but for less than the pause between two steps: then a core is free for whoever reads the last step's
    tokens. If they spun on, that reader would take a core from the thread that makes the next step (measured:
    1.4 ms of a step with 16 streams).

    Cells lie in huge pages (measured: decoding at 1 B takes 3 to 5 % less time, resident memory 3 % more).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    for name, value in HUGE_PAGES.items():
        os.environ.setdefault(name, value)


def read_settings(arguments: Sequence[str]) -> Settings:
    """Settings for these command line arguments. Raises StartupError with one line that names the option."""
    _refuse_replaced(arguments)
    settings = _reading(_config_path(arguments))
    try:
        return CliApp.run(settings, cli_args=list(arguments), cli_settings_source=_command_line(settings))
    except ValidationError as error:
        raise StartupError("; ".join(_problem(e["loc"], e["msg"]) for e in error.errors())) from None
    except (SettingsError, OSError, ValueError) as error:
        raise StartupError(f"cannot read the settings: {error}") from None


def _refuse_replaced(arguments: Sequence[str]) -> None:
    """Raises StartupError for old names on the command line or in the environment, which would be ignored."""
    given = {argument.partition("=")[0] for argument in arguments}
    for name in _REPLACED:
        if _option(name) in given or f"{_ENV_PREFIX}{name.upper()}" in os.environ:
            raise StartupError(_problem((name,), ""))


def _command_line(settings: type[Settings]) -> CliSettingsSource[OptionParser]:
    parser = OptionParser(_PROGRAM, Settings.__doc__ or "")
    return CliSettingsSource(settings, root_parser=parser, add_argument_method=add_option)


def _reading(path: Path | None) -> type[Settings]:
    """Settings that also read a TOML file."""
    if path is None:
        return Settings
    if not path.is_file():
        raise StartupError(f"there is no configuration file {path}")
    return type("Settings", (Settings,), {"__doc__": Settings.__doc__}, toml_file=path)


def _config_path(arguments: Sequence[str]) -> Path | None:
    """Finds the TOML file, which must be known before the options are read."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", default=os.environ.get(f"{_ENV_PREFIX}CONFIG"))
    path = parser.parse_known_args(arguments)[0].config
    return Path(path).expanduser() if path else None


def _problem(location: tuple[int | str, ...], message: str) -> str:
    """`location` is the option and, for a list, the place in it, which says nothing to whoever gave a few."""
    names = [part for part in location if isinstance(part, str)]
    if names and names[0] in _REPLACED:
        return f"{_option(names[0])} is gone: use {_REPLACED[names[0]]}"
    return f"{_option('-'.join(names))}: {message}" if location else message


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
