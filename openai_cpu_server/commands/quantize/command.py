"""Runs the command: from arguments to a smaller model."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from openai_cpu_server.commands.plain_text import say, show
from openai_cpu_server.commands.quantize.arguments import parser, quantize_options
from openai_cpu_server.commands.quantize.child import Child
from openai_cpu_server.commands.quantize.conversion import Conversion, Source
from openai_cpu_server.commands.quantize.messages import Go, Job
from openai_cpu_server.commands.quantize.output import Output
from openai_cpu_server.commands.quantize.progress import QuantizeBar
from openai_cpu_server.commands.quantize.report import fallback_lines, summary, type_list
from openai_cpu_server.commands.quantize.signals import Stopped, stoppable
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.file_types import file_type_named
from openai_cpu_server.llama.gguf.importance import read_importance
from openai_cpu_server.llama.gguf.quantize import QuantizeFailed, QuantizeOptions
from openai_cpu_server.model_source import local_model
from openai_cpu_server.user_folders import expanded

_FAILED = 1
_LIST = "list"
_WRITING_FAILED = "iostream error"
"""All that C++ says about a full disk."""


def quantize(arguments: Sequence[str]) -> None:
    """Run the command. Exits with 1 if the work fails, 128 + signal if stopped.
    Raises StartupError for wrong use."""
    given = parser().parse_args(arguments)
    if given.type == _LIST:
        show(type_list())
        return
    kind = file_type_named(given.type)
    if given.source is None or given.output is None:
        raise StartupError("usage: openai-cpu-server quantize IN OUT --type TYPE (--help says more)")
    source = Source.read(local_model(given.source))
    num_parts = len(source.files) if given.keep_split else 1
    options = quantize_options(given, kind, num_parts=num_parts)
    output = Output(expanded(given.output), num_parts=num_parts)
    output.check(source.files, may_overwrite=given.force)
    try:
        _quantize(source, output, options, dry_run=given.dry_run)
    except QuantizeFailed as error:
        say(f"openai-cpu-server: {_why(error, source, output)}")
        sys.exit(_FAILED)
    except Stopped as stop:
        say("openai-cpu-server: interrupted, nothing was written")
        sys.exit(stop.exit_code)


def _quantize(source: Source, output: Output, options: QuantizeOptions, *, dry_run: bool) -> None:
    importance = read_importance(Path(options.importance)) if options.importance is not None else None
    started = time.monotonic()
    with stoppable() as too_late, Child(Job(str(source.path), options)) as child:
        conversion = _planned(child, source)
        conversion.require_possible(importance, allows_requantising=options.allows_requantising)
        if not dry_run:
            _make(child, conversion, output, too_late)
    seconds = time.monotonic() - started
    title = "would be made" if dry_run else f"made in {seconds:.1f} s"
    made_bytes = conversion.file_bytes if dry_run else sum(file.stat().st_size for file in output.files)
    lines = summary(f"{output.name}: {title}", conversion, made_bytes)
    show("\n".join([*lines, *fallback_lines(conversion)]))


def _planned(child: Child, source: Source) -> Conversion:
    """Ask llama.cpp for its plan. Nothing is written yet, so an error here is about the request."""
    try:
        return Conversion.of(source, child.plan())
    except QuantizeFailed as error:
        raise StartupError(f"cannot quantise {source.path}: {error}") from None


def _make(child: Child, conversion: Conversion, output: Output, too_late: Callable[[], None]) -> None:
    """Make the output. `too_late` is called when it can no longer be stopped."""
    output.require_room(conversion.file_bytes)
    tensors = [(tensor.name, tensor.num_bytes) for tensor, _ in conversion.tensors]
    with output.folder() as folder:
        with QuantizeBar(Console(stderr=True), output.name, tensors) as bar:
            child.run(Go(str(folder), str(output.target(folder))), bar.begin)
            bar.end()
            conversion.require_made(output.made(folder))
            output.settle(folder)
        too_late()
        output.publish(folder)


def _why(error: QuantizeFailed, source: Source, output: Output) -> str:
    if _WRITING_FAILED in str(error):
        return f"cannot write {output.path}: the disk is full, or a limit of file sizes is reached"
    return f"cannot quantise {source.path}: {error}"
