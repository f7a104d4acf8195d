"""Runs the command: from a model's name to a report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from openai_cpu_server.cli.inspect.facts import FileFacts, read_facts, read_template, template_source
from openai_cpu_server.cli.inspect.machine import MeasuredCurve, best_known, measure, predicted, read_memory
from openai_cpu_server.cli.inspect.report import InspectReport, text
from openai_cpu_server.cli.plain_text import show
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.config.settings import Settings
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import model_tensors
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.measure.measurements import Profile, load_profile
from openai_cpu_server.model_source import local_model


def inspect(arguments: Sequence[str]) -> None:
    """Run the command. Raises StartupError with one line."""
    given, rest = _parser().parse_known_args(arguments)
    settings = _settings(rest)
    header = GgufHeader(local_model(given.model))
    if given.template is not None:
        show(_template(header, given.template))
        return
    facts = read_facts(header, model_tensors(header))
    report = _Inspection(header, facts, settings).report(measures=given.measure)
    show(_json(report) if given.json else text(report, given.model))


def _json(report: InspectReport) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openai-cpu-server inspect",
        description="Say what a model file holds, what fits into this machine's memory, and how fast it is"
        " here. Reads the header only; nothing is loaded or downloaded.",
        epilog="All options of serve that concern the engine are accepted too (--kv-type q8_0): the report is"
        " about a server with them. Exit status: 0, or 2 if the file is missing, damaged or no GGUF file.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="PATH, smollm2, demo, or an alias or hf:OWNER/REPO[/FILE] that was downloaded",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="all of it as JSON, sizes in bytes")
    output.add_argument(
        "--template",
        nargs="?",
        const="",
        metavar="NAME",
        help="print the chat template, whole, and nothing else; NAME: of a further one, such as tool_use",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="load the model and time its steps, unless that was done before (10 s for 1 B)",
    )
    return parser


def _settings(arguments: Sequence[str]) -> Settings:
    for argument in arguments:
        if argument.partition("=")[0] == "--model":
            raise StartupError("--model is for serve: inspect MODEL")
    return read_settings(arguments)


def _template(header: GgufHeader, name: str) -> str:
    source = template_source(header, name)
    if source is None:
        raise StartupError(f"{header.path} has no chat template{f' {name}' if name else ''}")
    return source


class _Inspection:
    """One model on one machine, with the options of one server."""

    def __init__(self, header: GgufHeader, facts: FileFacts, settings: Settings) -> None:
        self._header = header
        self._facts = facts
        self._cache_dir = settings.profile_dir
        self._profile = load_profile(header.path, self._cache_dir) if settings.profile == "auto" else None
        draft = local_model(settings.draft_model) if settings.draft_model else None
        self._draft = GgufHeader(draft) if draft is not None else None
        self._options = _engine_options(header.path, draft, settings, self._profile)

    def report(self, *, measures: bool) -> InspectReport:
        header, facts, options, machine = self._header, self._facts, self._options, Machine()
        if not facts.generates_text:
            return InspectReport(facts, read_template(header), memory=None, profile=None, speed=None)
        memory = read_memory(header, facts, options, machine, self._draft)  # as it is without the model
        measured = self._measured() if measures else self._known(machine)
        return InspectReport(
            facts,
            read_template(header),
            memory,
            self._profile,
            predicted(measured, options, header, machine) if measured else None,
        )

    def _known(self, machine: Machine) -> MeasuredCurve | None:
        return best_known(self._header.path, self._cache_dir, self._options, self._header, machine)

    def _measured(self) -> MeasuredCurve:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("", total=1.0)
            return measure(
                self._options,
                self._cache_dir,
                lambda what, fraction: bar.update(task, description=what, completed=fraction),
            )


def _engine_options(
    model: Path, draft: Path | None, settings: Settings, profile: Profile | None
) -> EngineOptions:
    """The options that `serve` would have, without the prefix cache, which cannot be measured."""
    options = settings.engine_options(model, cache_bytes=0, draft_model_path=draft)
    return profile.applied(options, given=settings.model_fields_set) if profile else options
