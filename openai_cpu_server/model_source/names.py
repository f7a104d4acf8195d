"""Names on the hub (`hf:OWNER/REPO`, `hf:OWNER/REPO:QUANT`, `hf:OWNER/REPO/FILE`) and of GGUF files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from urllib.parse import unquote

import msgspec

from openai_cpu_server.errors import StartupError

PREFIX = "hf:"
_FILE = r"[^:\\\x00-\x1f\x7f\ud800-\udfff]+"
_NAME = re.compile(rf"{PREFIX}(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>{_FILE})|:(?P<quant>[\w.-]+))?", re.ASCII)

_PAGE = re.compile(
    r"(?:https?://)?(?P<host>[\w.-]+(?::\d+)?)/(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:/(?:blob|resolve|raw|tree)/(?P<branch>[^/?#]+)(?:/(?P<file>[^?#]+))?|:(?P<quant>[\w.-]+))?/?(?:[?#].*)?",
    re.ASCII,
)
HUB_HOSTS = ("huggingface.co", "hf.co", "www.huggingface.co")
_BRANCH = "main"


def hub_page(text: str, hosts: Sequence[str] = HUB_HOSTS) -> str | None:
    """Return the name of the shown repository or file, or None. Raises StartupError for any other page of the
    hub."""
    is_address = text.startswith(("https://", "http://"))
    page = _PAGE.fullmatch(text)
    if page is None or page["host"] not in hosts or page["repo"].startswith(("datasets/", "spaces/")):
        if is_address:
            raise StartupError(
                f"{text} is not a model's page on {hosts[0]}: name one, or download the file and name that"
            )
        return None
    if page["branch"] not in (None, _BRANCH):
        raise StartupError(f"{text}: only the branch {_BRANCH} is supported, not {page['branch']}")
    return str(HubName(repo=page["repo"], file=unquote(page["file"] or "") or None, quant=page["quant"]))


class HubName(msgspec.Struct, frozen=True, kw_only=True):
    repo: str
    file: str | None = None
    """File, or None for the repository's best."""
    quant: str | None = None

    def __str__(self) -> str:
        ending = f"/{self.file}" if self.file else f":{self.quant}" if self.quant else ""
        return f"{PREFIX}{self.repo}{ending}"


def parse_hub_name(text: str) -> HubName:
    match = _NAME.fullmatch(text)
    if match is None or not (match["file"] is None or is_file_name(match["file"])):
        raise StartupError(f"{text!r} is not hf:OWNER/REPO, hf:OWNER/REPO/FILE or hf:OWNER/REPO:QUANT")
    return HubName(repo=match["repo"], file=match["file"], quant=match["quant"])


def is_file_name(path: str) -> bool:
    """Return True for a possible path; hubs can list others."""
    return re.fullmatch(_FILE, path) is not None and {"", ".", ".."}.isdisjoint(path.split("/"))


_PREFERENCE = (
    "Q4_K_M", "Q4_K_S", "Q4_K*", "Q5_K_M", "Q5_K_S", "Q5_K*", "Q4_0", "Q4_1", "IQ4*", "MXFP4*", "Q4*", "Q5*",
    "Q6*", "Q3_K_M", "Q3_K_L", "Q3_K*", "Q8*", "IQ3*", "Q3*", "F16", "BF16", "F32", "Q2*", "IQ2*", "TQ*",
    "IQ1*",
)  # fmt: skip
"""Q4_K_M, then the nearest sizes, then the rest."""
_QUANTISATION = re.compile(
    r"(?<![a-z0-9])(I?Q\d(?:_(?:\d|K|NL|XXS|XS|S|M|L|XL))*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|FP?(?:16|32))(?![a-z0-9])",
    re.IGNORECASE,
)
_PART = re.compile(r"(?P<model>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)


def model_parts(name: str) -> tuple[str, ...]:
    """Return all files of a model, from the name of any."""
    match = _PART.fullmatch(name)
    count = int(match["parts"]) if match else 0
    if match is None or not 1 <= int(match["part"]) <= count:
        return (name,)
    return tuple(f"{match['model']}-{part:05}-of-{count:05}{match['suffix']}" for part in range(1, count + 1))


def whole_models(names: Iterable[str]) -> list[str]:
    """Return first parts of whole models."""
    present = set(names)
    return sorted(
        name
        for name in present
        if _is_model(name) and model_parts(name)[0] == name and present >= {*model_parts(name)}
    )


def quantisation(name: str) -> str | None:
    found = _QUANTISATION.findall(name)
    return {"FP16": "F16", "FP32": "F32"}.get(found[-1].upper(), found[-1].upper()) if found else None


def preferred(candidates: Sequence[str], quant: str | None = None) -> str | None:
    """`quant`: such as `Q5_K_M`, or None for the best."""
    tag = re.compile(rf"(?<![a-z0-9]){re.escape(quant or '')}(?![a-z0-9_])", re.IGNORECASE)
    matching = [name for name in candidates if quant is None or tag.search(name)]
    return min(matching, key=_order, default=None)


_BEST_STORED = ("f16", "q8_0", "bf16", "f32")
"""Best first: projectors are small, and their error is in every row."""
_BEST_OF_HEADS = ("q8_0", "f16", "bf16", "f32")
"""Best first: fewer bits are hardly ever right, and more are slower."""
_DRAFTING = re.compile(r"(mtp|eagle3?|dflash|dspark)[-_.]")


def projectors(names: Iterable[str]) -> list[str]:
    files = ((name, name.lower().rpartition("/")[2]) for name in names)
    return sorted(name for name, file in files if file.endswith(".gguf") and "mmproj" in file)


def preferred_projector(candidates: Sequence[str]) -> str | None:
    return _first_ending(candidates, _BEST_STORED)


def _first_ending(candidates: Sequence[str], ends: Sequence[str]) -> str | None:
    named = (name for end in ends for name in candidates if PurePosixPath(name).stem.lower().endswith(end))
    return next(named, candidates[0] if candidates else None)


def named_models(names: Iterable[str]) -> list[str]:
    """Return whole models by name alone, without files that only draft."""
    return [name for name in whole_models(names) if not drafting_files([name])]


def drafting_files(names: Iterable[str]) -> list[str]:
    """Return files that, by name, only draft."""
    files = ((name, name.lower().rpartition("/")[2]) for name in names)
    return sorted(name for name, file in files if file.endswith(".gguf") and _DRAFTING.match(file))


def heads(names: Iterable[str]) -> list[str]:
    return [name for name in drafting_files(names) if name.lower().rpartition("/")[2].startswith("mtp")]


def preferred_head(candidates: Sequence[str]) -> str | None:
    return _first_ending(candidates, _BEST_OF_HEADS)


def name_words(name: str) -> tuple[str, ...]:
    """Return a file name's words without quantisation and kind."""
    part = _PART.fullmatch(name)
    stem = _QUANTISATION.sub(" ", (part["model"] if part else PurePosixPath(name).stem)).lower()
    found = re.split(r"[^a-z0-9.]+|\.(?!\d)", stem)
    return tuple(word for word in found if word not in ("", "mmproj", "mtp", "ud"))


def _is_model(name: str) -> bool:
    file_name = name.lower().rpartition("/")[2]
    is_calibration = "imatrix" in file_name and quantisation(file_name) is None
    return file_name.endswith(".gguf") and "mmproj" not in file_name and not is_calibration


def _order(name: str) -> tuple[int, int, str]:
    quant = quantisation(name) or ""
    ranks = (rank for rank, pattern in enumerate(_PREFERENCE) if fnmatchcase(quant, pattern))
    return next(ranks, len(_PREFERENCE)), name.count("/"), name
