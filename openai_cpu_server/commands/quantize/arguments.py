"""The options of the command, and their meaning for llama.cpp."""

from __future__ import annotations

import argparse

from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.file_types import FileType, is_copy
from openai_cpu_server.llama.gguf.quantize import QuantizeOptions
from openai_cpu_server.llama.gguf.tensor_types import tensor_type_named
from openai_cpu_server.llama.host.machine import Machine

_BUFFER_MIN, _BUFFER_MAX = 64 * 2**20, 8 * 2**30


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openai-cpu-server quantize",
        description="Store the weights of a GGUF model in fewer bits.",
        epilog="Exit status: 0 done; 1 it failed on the way; 2 the model, the type or the use of this command"
        " is wrong; 130 interrupted. OUT is there whole or not at all.",
        allow_abbrev=False,
    )
    _add_files(parser)
    _add_types(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="default: all that this process may use")
    parser.add_argument("--dry-run", action="store_true", help="say what would come out, and write nothing")
    return parser


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="?",
        metavar="IN",
        help="PATH, smollm2, demo, or an alias or hf:OWNER/REPO[/FILE] that was downloaded already",
    )
    parser.add_argument("output", nargs="?", metavar="OUT", help="the file to write")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument(
        "--keep-split", action="store_true", help="as many parts as IN has (OUT-00001-of-00003.gguf)"
    )


def _add_types(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--type", required=True, help="such as q4_k_m or q8_0; list shows all")
    parser.add_argument(
        "--allow-requantize", action="store_true", help="even if IN is quantised: loses more than from f16"
    )
    parser.add_argument("--pure", action="store_true", help="all tensors in one type, no mixture")
    parser.add_argument("--output-tensor-type", metavar="TYPE", help="of output.weight, such as q8_0")
    parser.add_argument("--token-embedding-type", metavar="TYPE", help="of the token embeddings")
    parser.add_argument(
        "--leave-output-tensor", action="store_true", help="output.weight stays as it is in IN"
    )
    parser.add_argument(
        "--tensor-type",
        action="append",
        default=[],
        metavar="NAMES=TYPE",
        help="of tensors whose name a regular expression finds (ffn_down=q8_0); may be given several times",
    )
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix: the smallest types need one")


def quantize_options(given: argparse.Namespace, kind: FileType, *, num_parts: int) -> QuantizeOptions:
    """llama.cpp's options. `num_parts` is the number of files in the output. Raises StartupError."""
    machine = Machine()
    if given.threads is not None and given.threads < 1:
        raise StartupError(f"--threads must be at least 1, not {given.threads}")
    return QuantizeOptions(
        file_type=kind.number,
        threads=given.threads or machine.num_cpus(),
        is_copy=is_copy(kind),
        is_pure=given.pure,
        keeps_output=given.leave_output_tensor,
        output_type=_number(given.output_tensor_type),
        embedding_type=_number(given.token_embedding_type),
        tensor_types=tuple(map(_pair, given.tensor_type)),
        importance=given.imatrix,
        allows_requantising=given.allow_requantize,
        keeps_parts=num_parts > 1,
        buffer_bytes=min(max(machine.free_memory() // 4, _BUFFER_MIN), _BUFFER_MAX),
    )


def _number(name: str | None) -> int | None:
    return None if name is None else tensor_type_named(name).number


def _pair(text: str) -> tuple[str, int]:
    pattern, _, name = text.rpartition("=")
    if not pattern:
        raise StartupError(f"--tensor-type {text}: write NAMES=TYPE, such as ffn_down=q8_0")
    return pattern, tensor_type_named(name).number
