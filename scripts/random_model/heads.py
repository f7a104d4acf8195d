"""Tensors of prediction heads, and heads that are right for a chosen share of tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from random_model.architectures import Architecture

FIRST_TEXT = 261
"""Ordinary text begins here."""
_OF_TOKEN = 0.4
"""Share of the head's next token that the token decides. The rest follows from the hidden row before it, so
that another position's row gives another token."""
_SILENT = ("attn_output.weight", "ssm_out.weight")
_ONES = ("nextn.enorm.weight", "nextn.hnorm.weight", "nextn.shared_head_norm.weight")


def assistant_shapes(model: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Gemma 4 assistant, which llama.cpp does not report without its model."""
    facts = model.own_facts
    width, target, ffn = (
        facts[f"*.{name}"] for name in ("embedding_length", "embedding_length_out", "feed_forward_length")
    )
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (model.vocab, width),
        "output_norm.weight": (width,),
        "nextn.pre_projection.weight": (width, 2 * target),
        "nextn.post_projection.weight": (target, width),
    }
    for layer, is_window in enumerate(facts["*.attention.sliding_window_pattern"]):
        head = facts["*.attention.key_length_swa" if is_window else "*.attention.key_length"]
        heads = head * facts["*.attention.head_count"]
        own = {
            "attn_norm.weight": (width,),
            "attn_q.weight": (heads, width),
            "attn_output.weight": (width, heads),
            "attn_q_norm.weight": (head,),
            "post_attention_norm.weight": (width,),
            "layer_output_scale.weight": (1,),
            "ffn_norm.weight": (width,),
            "ffn_gate.weight": (ffn, width),
            "ffn_up.weight": (ffn, width),
            "ffn_down.weight": (width, ffn),
            "post_ffw_norm.weight": (width,),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
        if not is_window:
            shapes["rope_freqs.weight"] = (head // 2,)
    return shapes


def with_fused_products(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Join queries, keys and values, without which llama.cpp ends the process for heads of MiMo."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        layer, _, kind = name.partition(".attn_")
        if kind in ("q.weight", "k.weight", "v.weight"):
            rows = found.get(f"{layer}.attn_qkv.weight", (0, 0))[0]
            found[f"{layer}.attn_qkv.weight"] = (rows + shape[0], shape[1])
        else:
            found[name] = shape
    return found


_CODE_GAIN = 48.0
"""Logit of the next token. Others are below a sixth of it."""


def arrange(path: Path) -> None:
    """Overwrite weights so that each token has one follower, known to the head until `spoil`.

    Tokens have codes of +1 and -1, and a follower's code is its token's, rotated by one place. Layers compute
    as before and add nothing. Such weights survive quantisation.
    """
    tensors = {one.name: one.data for one in GGUFReader(path, "r+").tensors}
    vocab, width = tensors["token_embd.weight"].shape
    draw = np.random.default_rng(0)
    bases = draw.choice(np.array([-1, 1], np.float32), (-(-vocab // width), width))
    places = np.arange(width)
    rotated = (places[None, :] - places[:, None]) % width  # a row for each rotation to the right
    cycles = [base[rotated] for base in bases]
    codes, before = (
        np.roll(np.concatenate(rows)[:vocab], FIRST_TEXT, axis=0)
        for rows in (cycles, [np.roll(cycle, 1, axis=0) for cycle in cycles])
    )
    turned = np.roll(np.eye(width, dtype=np.float32), 1, axis=0)
    head = np.concatenate([_OF_TOKEN * np.eye(width, dtype=np.float32), (1 - _OF_TOKEN) * turned], axis=1)
    outputs = before * (_CODE_GAIN / width)
    outputs[:FIRST_TEXT] = 0
    for name, data in tensors.items():
        new = _arranged(name, codes, outputs, head)
        if new is not None:
            data[:] = new


def spoil(path: Path, right_percent: int) -> None:
    """Make the head of an arranged model sure of random wrong tokens, except for `right_percent`. Rows of any
    type are exchanged whole."""
    tensors = {one.name: one.data for one in GGUFReader(path, "r+").tensors}
    (rows,) = (data for name, data in tensors.items() if name.endswith("nextn.shared_head_head.weight"))
    texts = np.arange(FIRST_TEXT, len(rows))
    wrong = texts[np.random.default_rng(1).random(len(texts)) * 100 >= right_percent]
    rows[wrong] = rows[np.roll(wrong, 1)]


def _arranged(
    name: str, codes: npt.NDArray[np.float32], outputs: npt.NDArray[np.float32], head: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32] | float | None:
    kind = name.split(".", 2)[-1]
    if kind in _SILENT or kind.startswith("ffn_down"):
        return 0.0
    if "bias" in kind and "ssm_dt" not in kind:
        return 0.0
    if name == "output_norm.weight" or kind in _ONES:
        return 1.0
    if name == "output.weight" or kind == "nextn.shared_head_head.weight":
        return outputs
    if name == "token_embd.weight" or kind == "nextn.embed_tokens.weight":
        return codes
    return head if kind == "nextn.eh_proj.weight" else None
