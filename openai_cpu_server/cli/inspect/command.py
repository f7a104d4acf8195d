"""Facts and costs of a model file as a table or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from openai_cpu_server.cli.inspect.facts import (
    FileFacts,
    HearingFacts,
    ModelShape,
    SightFacts,
    TemplateFacts,
    TokenizerFacts,
    read_encoders,
    read_facts,
    read_template,
    template_source,
)
from openai_cpu_server.cli.inspect.machine import (
    DeviceFacts,
    MeasuredCurve,
    MemoryFacts,
    SpeedFacts,
    measure,
    most_similar_curve,
    predicted,
    read_devices,
    read_memory,
)
from openai_cpu_server.cli.plain_text import bytes_text, columns, count_text, option_value, printable, show
from openai_cpu_server.config.command_line import CommandParser
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.config.settings import Settings
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import model_tensors
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.measure.measurements import Profile, load_profile
from openai_cpu_server.llama.model.kv_size import planned_drafts
from openai_cpu_server.llama.offload.choice import NO_DEVICE
from openai_cpu_server.model_source.resolve import drafting_file, local_model, projector_of


class InspectReport(msgspec.Struct, frozen=True):
    model: FileFacts
    sight: SightFacts | None
    hearing: HearingFacts | None
    chat_template: TemplateFacts | None
    memory: MemoryFacts | None
    """Absent if the file is not a model that generates text."""
    devices: list[DeviceFacts]
    """Empty if the CPU is the only device."""
    why_no_device: str | None
    profile: Profile | None
    speed: SpeedFacts | None
    """Prediction, or None without measurements on this machine."""


def text(report: InspectReport, name: str) -> str:
    """`name`: as typed by the user."""
    sections = [_about(report), _mixture(report.model)]
    tokenizer = report.model.tokenizer
    if tokenizer is not None and tokenizer.special:
        rows = [(each.role, str(each.id), printable(each.text or "-")) for each in tokenizer.special]
        sections.append(columns([("token", "id", "text"), *rows], right=(1,)))
    if report.memory is not None:
        sections.append(_memory(report.memory))
    sections += map(_device, report.devices)
    sections += [f"device: {report.why_no_device}"] if report.why_no_device else []
    if report.memory is not None:
        sections.append(_speed(report.speed))
        tuned = f"no; `openai-cpu-server tune {name}` finds the best options for this machine"
        if report.profile is not None:
            options = msgspec.structs.asdict(report.profile).items()
            tuned = ", ".join(f"{option} {option_value(value)}" for option, value in options)
        sections.append(f"tuned: {tuned}")
    return "\n\n".join(sections)


def _joined(*parts: object, by: str = ", ") -> str:
    return by.join(str(part) for part in parts if part)


def _about(report: InspectReport) -> str:
    facts, shape, weights, memory = report.model, report.model.shape, report.model.weights, report.memory
    content = "not a model that generates text"
    if facts.content != "model":
        content = f"{printable(facts.content)}, not a model"
    parts = f" and {facts.files - 1} more" if facts.files > 1 else ""
    active = weights.active_parameters
    rows = [
        ("name", printable(facts.name or "-")),
        ("file", f"{facts.path}{parts}, {bytes_text(facts.file_bytes)}"),
        ("content", "" if facts.generates_text else content),
        (
            "architecture",
            _joined(
                printable(facts.architecture),
                shape.layers and f"{shape.layers} layers",
                shape.width and f"width {shape.width:,}",
                shape.heads and f"{shape.heads} heads",
                shape.kv_heads and f"{shape.kv_heads} for keys and values",
                shape.experts and f"{shape.experts} experts, {shape.experts_used or shape.experts} at work",
            ),
        ),
        (
            "parameters",
            _joined(
                count_text(weights.parameters),
                active != weights.parameters and f"of which {count_text(active)} for a token",
            ),
        ),
        ("quantisation", _joined(weights.file_type, f"{weights.bits_per_weight:.2f} bits per weight")),
        ("license", printable(facts.license or "")),
        (
            "context",
            _joined(
                shape.context_trained and f"trained for {shape.context_trained:,} tokens",
                memory and memory.context and f"serve grants {memory.context:,} to a request",
                by="; ",
            ),
        ),
        ("positions", _positions(shape)),
        (
            "attention",
            _joined(
                shape.window and f"some or all layers see the last {shape.window:,} tokens only",
                shape.has_state and "some or all layers keep a state for each sequence instead of cells",
                by="; ",
            ),
        ),
        ("tokenizer", _tokenizer(facts.tokenizer)),
        ("chat template", _template(report.chat_template) if facts.tokenizer is not None else ""),
        ("", _turns(report.chat_template)),
        ("sees pictures", _sight(report.sight) if facts.generates_text else ""),
        ("hears sound", _hearing(report.hearing) if facts.generates_text else ""),
    ]
    return "\n".join(f"{title:<15}{fact}" for title, fact in rows if fact)


def _positions(shape: ModelShape) -> str:
    scaling = ""
    if shape.rope_scaling not in (None, "none"):
        scaling = _joined(
            f"{printable(shape.rope_scaling or '')} scaling",
            shape.rope_scaling_factor and f"by {shape.rope_scaling_factor:g}",
            shape.rope_original_context and f"from {shape.rope_original_context:,} tokens",
            by=" ",
        )
    return _joined(
        (shape.rope_dimensions or shape.rope_base) and "RoPE",
        shape.rope_base and f"base {shape.rope_base:,.0f}",
        shape.rope_dimensions and f"{shape.rope_dimensions} dimensions",
        scaling,
    )


def _tokenizer(tokenizer: TokenizerFacts | None) -> str:
    if tokenizer is None:
        return "none"
    return _joined(
        printable(tokenizer.kind) + (f" ({printable(tokenizer.pre)})" if tokenizer.pre else ""),
        f"{tokenizer.size:,} tokens",
        tokenizer.adds_bos and "BOS before each text",
        tokenizer.adds_eos and "EOS behind each text",
    )


def _template(template: TemplateFacts | None) -> str:
    if template is None:
        return "none: chats need serve --chat-template FILE"
    if template.problem is not None:
        return f"cannot be used: {printable(template.problem)}"
    tools = f"tool calls as {template.tool_format}"
    thoughts = f", thoughts as {template.reasoning_format}" if template.reasoning_format else ""
    named = f"; also {', '.join(map(printable, template.named))}" if template.named else ""
    return f"{len(template.source):,} characters, {tools}{thoughts}{named} (--template prints it)"


_NO_PROJECTOR = "no; that needs a projector, an mmproj file beside the model's"


def _sight(sight: SightFacts | None) -> str:
    if sight is None:
        return _NO_PROJECTOR
    return "yes, with " + _joined(
        sight.path,
        bytes_text(sight.file_bytes),
        printable(sight.kind or ""),
        sight.image_size and f"{sight.image_size} pixels at once",
        sight.patch_size and f"patches of {sight.patch_size}",
        sight.layers and f"{sight.layers} layers",
    )


def _hearing(hearing: HearingFacts | None) -> str:
    if hearing is None:
        return _NO_PROJECTOR
    if hearing.why_not is not None:
        return f"no: any sound crashes llama.cpp with {hearing.path} ({hearing.why_not})"
    return "yes, with " + _joined(
        hearing.path,
        bytes_text(hearing.file_bytes),
        printable(hearing.kind or ""),
        f"{hearing.sample_rate:,} samples a second",
        hearing.bands and f"{hearing.bands} bands",
        hearing.layers and f"{hearing.layers} layers",
    )


def _turns(template: TemplateFacts | None) -> str:
    shape = template.shape if template is not None else None
    if template is None or shape is None:
        return ""
    calls = shape.calls
    return "shows " + _joined(
        f"system messages {shape.system.value}",
        "tools" if shape.shows_tools or shape.shows_system_tools else "no tools",
        "no calls or results" if calls is None else "calls and results",
        calls is not None and calls.one_by_one and "one call a message",
        calls is not None and calls.text_apart and "no text beside calls",
        template.reasoning_format and not template.reasoning_field and "no earlier thoughts",
        shape.alternates and "users and answers must take turns",
        not shape.takes_empty and "no empty answers",
    )


def _mixture(facts: FileFacts) -> str:
    total = max(1, sum(share.bytes for share in facts.weights.types))
    rows = [("weights in", "tensors", "size", "share", "bits")]
    rows += [
        (
            share.type,
            str(share.tensors),
            bytes_text(share.bytes),
            f"{share.bytes / total:.1%}",
            f"{share.bits:.2f}",
        )
        for share in facts.weights.types
    ]
    return columns(rows, right=(1, 2, 3, 4))


def _memory(memory: MemoryFacts) -> str:
    lines = [
        f"memory: {bytes_text(memory.free_bytes)} of {bytes_text(memory.total_bytes)} free, "
        f"{bytes_text(memory.left_bytes)} beside the weights"
        f"{' of the model and its draft model' if memory.draft_model else ''}"
    ]
    if memory.problem is not None:
        lines.append(f"serve would not start: {memory.problem}")
    if memory.kv_types:
        lengths = [fit.tokens for fit in memory.kv_types[0].fits]
        rows = [("KV cells", "bytes per token", "tokens that fit", *(f"sequences of {n:,}" for n in lengths))]
        rows += [
            (
                cost.type + (" (serve)" if cost.type == memory.kv_type else ""),
                f"{cost.bytes_per_token:,}",
                f"{cost.tokens:,}",
                *(f"{fit.sequences:,}" for fit in cost.fits),
            )
            for cost in memory.kv_types
        ]
        lines.append(columns(rows, right=range(1, len(rows[0]))))
    if memory.pool_tokens is not None and memory.kv_types:
        lines.append(
            f"serve takes {memory.pool_tokens:,} tokens for all requests unless --ctx-size says more"
        )
    return "\n".join(lines)


def _device(facts: DeviceFacts) -> str:
    device = facts.device
    parts = ", ".join(f"{part} {bytes_text(size)}" for part, size in facts.takes.items() if size)
    taken = f" ({parts})" if parts else ""
    lines = [
        f"device {device.name} ({printable(device.description)}): {bytes_text(device.free_bytes)} of "
        f"{bytes_text(device.total_bytes)} free",
        f"--gpu-layers {facts.gpu_layers}: {facts.split}{taken}",
    ]
    if facts.draft is not None:
        lines.append(f"draft model: {facts.draft}")
    if facts.why is not None:
        lines.append(facts.why)
    if facts.measured:
        rows = [(one.split, "-" if one.turn_ms is None else f"{one.turn_ms:,.0f}") for one in facts.measured]
        lines.append(columns([("measured", "ms for a turn of a chat"), *rows], right=(1,)))
    return "\n".join(lines)


def _speed(speed: SpeedFacts | None) -> str:
    if speed is None:
        return (
            "speed: not measured on this machine yet; serve does it while it is idle,\n"
            "or inspect with --measure"
        )
    rows = [("reading a prompt", f"{speed.prompt_tokens_per_second:,.0f}", "tokens/s")]
    rows += [
        (f"writing, {each.sequences} at once", f"{each.tokens_per_second:,.1f}", "tokens/s in all")
        for each in speed.decode
    ]
    options = _joined(
        f"{speed.threads} thread{'' if speed.threads == 1 else 's'}",
        speed.threads_batch != speed.threads and f"{speed.threads_batch} in batches",
        f"KV {speed.kv_type}",
        f"weights {speed.weights}",
        not speed.flash_attention and "no flash attention",
        *(on and f"{name} by our kernel ({on})" for name, on in speed.kernels.items()),
        f"{speed.context:,} tokens behind each",
        not speed.is_default and "serve would have other options",
    )
    return f"speed, predicted from steps timed here ({options})\n{columns(rows, right=(1,))}"


def inspect(arguments: Sequence[str]) -> None:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if any(argument.partition("=")[0] == "--model" for argument in rest):
        raise StartupError("--model is for serve: inspect MODEL")
    settings = read_settings(rest, command=parser)
    header = GgufHeader(local_model(options.model))
    if (name := options.template) is not None:
        source = template_source(header, name)
        if source is None:
            raise StartupError(f"{header.path} has no chat template{f' {name}' if name else ''}")
        show(source)
        return
    facts = read_facts(header, model_tensors(header))
    report = _report(header, facts, settings, measures=options.measure)
    if options.json:
        show(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        show(text(report, options.model))


def _parser() -> CommandParser:
    parser = CommandParser(
        "inspect",
        description="Show what a model file contains, what fits into this machine's memory, and how fast "
        "the model is here. Reads only the header; nothing is loaded or downloaded.",
        epilog="All options of serve that concern the engine are accepted too (--kv-type q8_0): the report "
        "describes a server with them. Exit status: 0, or 2 if the file is missing, damaged or not a "
        "GGUF file.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="PATH, smollm2, demo, or an alias or hf:OWNER/REPO[/FILE] that was downloaded",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the report as JSON, with sizes in bytes")
    output.add_argument(
        "--template",
        nargs="?",
        const="",
        metavar="NAME",
        help="print only the chat template; NAME: another template of the file, such as tool_use",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="load the model and time its steps, unless that was done before (10 s for 1 B)",
    )
    return parser


def _report(header: GgufHeader, facts: FileFacts, settings: Settings, *, measures: bool) -> InspectReport:
    """Use the options of `serve` without the prefix cache, which cannot be measured."""
    folder, machine = settings.profile_dir, Machine()
    profile = load_profile(header.path, folder) if settings.profile == "auto" else None
    draft = drafting_file(header.path, settings.draft_model, find=local_model)
    projector = projector_of(header.path, settings.mmproj, find=local_model) if facts.generates_text else None
    options = settings.engine_options(
        header.path, cache_bytes=0, draft_model_path=draft, projector_path=projector
    )
    options = profile.applied(options, settings.model_fields_set) if profile else options
    template = read_template(header)
    devices = read_devices(options, folder, machine)
    absent = NO_DEVICE if options.wants_device and not devices else None
    if not facts.generates_text:
        return InspectReport(facts, None, None, template, None, devices, absent, profile=None, speed=None)
    sight, hearing = read_encoders(GgufHeader(projector)) if projector is not None else (None, None)
    drafts, _ = planned_drafts(header, options)
    memory = read_memory(header, facts, options, machine, drafts)  # as it is without the model
    curve = (
        _measured(options, folder)
        if measures
        else most_similar_curve(header.path, folder, options, header, machine)
    )
    speed = predicted(curve, options, header, machine) if curve else None
    return InspectReport(facts, sight, hearing, template, memory, devices, absent, profile, speed)


def _measured(options: EngineOptions, folder: Path) -> MeasuredCurve:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        return measure(
            options, folder, lambda what, fraction: bar.update(task, description=what, completed=fraction)
        )
