"""A model of each architecture that llama.cpp's own generator of test models knows, with a vocabulary and
with weights that make many tokens likely."""

from __future__ import annotations

import os
import shlex
import sysconfig
import tempfile
from pathlib import Path

import gguf
import numpy as np
from bench.llama_sources import VERSION, llama_cpp_in, run, unpacked_sources
from random_model.borrowed import borrowed_vocabulary
from random_model.gguf_file import add_tokenizer
from random_model.wanted import weights_for

from openai_cpu_server.config.folders import user_cache_dir
from tests.llama.odd_models import copy_metadata, written

_DEMO = Path(__file__).parents[2] / "model_assets" / "demo.gguf"
_LIBRARIES = Path(sysconfig.get_path("platlib")) / "lib"
"""Those of llama-cpp-python's wheel, the parts that only llama.cpp's own programs use among them."""
_SEED = "1"


def generated_models() -> Path:
    """The folder of what the generator writes: 900 MB, made in half a minute, kept in the user's cache."""
    folder = user_cache_dir() / "architectures" / VERSION
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="partial-") as partial:
            made = Path(partial) / "models"
            made.mkdir()
            _generate(llama_cpp_in(unpacked_sources(Path(partial), print)), made)
            # Processes that race each make all of it; whoever comes late has made it for nothing.
            if not folder.is_dir():
                made.rename(folder)
    return folder


def _generate(llama_cpp: Path, target: Path) -> None:
    generator = target.parent / "generator"
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    includes = [f"-I{llama_cpp / part}" for part in ("include", "common", "ggml/include", "src", "vendor")]
    libraries = [f"-L{_LIBRARIES}", f"-Wl,-rpath,{_LIBRARIES}"]
    libraries += [f"-l{name}" for name in ("llama-common", "llama", "ggml", "ggml-base")]
    source = str(llama_cpp / "tests" / "test-llama-archs.cpp")
    run([*compiler, "-std=c++17", "-O1", "-w", source, *includes, "-o", str(generator), *libraries])
    run([str(generator), "-s", _SEED, "-o", str(target)])


def readable(source: Path, target: Path) -> Path:
    """The model with a vocabulary, which the generator writes for none, and other weights: its own leave all
    tokens about equally likely, so that every answer would be a tie."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    shapes = {tensor.name: tuple(map(int, reversed(tensor.shape))) for tensor in reader.tensors}
    vocabulary = borrowed_vocabulary(_DEMO, reader.fields[f"{architecture}.vocab_size"].contents())
    writer = gguf.GGUFWriter(target, architecture)
    copy_metadata(reader, writer, skip={name for name in reader.fields if _is_left_out(name)})
    add_tokenizer(writer, vocabulary)
    for tensor in weights_for(shapes, vocabulary.quiet, embedding_std=0.5, query_key_norm=1.6):
        writer.add_tensor(tensor.name, tensor.data(0).view(np.float32).reshape(tensor.shape))
    return written(writer, target)


def _is_left_out(name: str) -> bool:
    # An empty list cannot be copied.
    return name.startswith("tokenizer.") or name.endswith(".classifier.output_labels")
