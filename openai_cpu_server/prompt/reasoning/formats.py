"""The marks that families of models put around their thoughts. Chat templates tell which are a model's."""

from __future__ import annotations

import msgspec

from openai_cpu_server.prompt.template import Template


class ReasoningFormat(msgspec.Struct, frozen=True):
    """One family's marks. White space around them belongs to neither thoughts nor answer."""

    name: str
    """The name in `--reasoning-format`."""
    begin: str
    end: str
    signs: tuple[str, ...]
    """A chat template that has all of these teaches the format."""
    answer_begin: str = ""
    """A mark between `end` and the answer."""
    answer_alone: str = ""
    """The mark of an answer without thoughts before it."""
    turn_begin: str = ""
    """What stands between `end` and anything else that follows, such as calls."""
    answer_end: str = ""
    gap: str = "\n\n"
    """What a model is used to write between the marks and the answer."""
    efforts: tuple[str, ...] = ()
    """How hard the model can think, if it cannot do without; (): it can."""
    has_channels: bool = False
    """The tool format of these models has thoughts of its own, between calls too."""

    @property
    def empty(self) -> str:
        """A block without thoughts, as the prompt of a model that is not to think ends with it."""
        return f"{self.begin}\n\n{self.end}{self.gap}{self.answer_begin}"


_ALL = (
    # gpt-oss. Its channels are the format's own; these are the marks of thoughts that come first.
    ReasoningFormat(
        "harmony",
        "<|channel|>analysis<|message|>",
        "<|end|>",
        signs=("<|channel|>", "<|message|>"),
        answer_begin="<|start|>assistant<|channel|>final<|message|>",
        answer_alone="<|channel|>final<|message|>",
        turn_begin="<|start|>assistant",
        gap="",
        efforts=("low", "medium", "high"),
        has_channels=True,
    ),
    # Gemma 4.
    ReasoningFormat("gemma", "<|channel>thought", "<channel|>", signs=("<|channel>", "<channel|>"), gap=""),
    # Magistral and Ministral.
    ReasoningFormat("mistral", "[THINK]", "[/THINK]", signs=("[THINK]",), gap=""),
    # Command R7B and Command A.
    ReasoningFormat(
        "cohere",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        signs=("<|START_THINKING|>",),
        answer_begin="<|START_RESPONSE|>",
        answer_end="<|END_RESPONSE|>",
        gap="",
    ),
    ReasoningFormat("seed", "<seed:think>", "</seed:think>", signs=("<seed:think>",)),
    ReasoningFormat("apertus", "<|inner_prefix|>", "<|inner_suffix|>", signs=("<|inner_prefix|>",), gap=""),
    ReasoningFormat(
        "apriel",
        "Here are my reasoning steps:",
        "[BEGIN FINAL RESPONSE]",
        signs=("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
        answer_end="[END FINAL RESPONSE]",
        gap="\n",
    ),
    # Granite 3.3, then 3.2.
    ReasoningFormat(
        "granite",
        "<think>",
        "</think>",
        signs=("<|start_of_role|>", "<think>", "<response>"),
        answer_begin="<response>",
        answer_end="</response>",
        gap="",
    ),
    ReasoningFormat(
        "granite-3.2",
        "Here is my thought process:",
        "Here is my response:",
        signs=("Here is my thought process:",),
    ),
    # Hunyuan.
    ReasoningFormat(
        "hunyuan",
        "<think>",
        "</think>",
        signs=("</think>", "<answer>"),
        answer_begin="<answer>",
        answer_end="</answer>",
        gap="\n",
    ),
    # EXAONE Deep.
    ReasoningFormat("thought", "<thought>", "</thought>", signs=("<thought>",)),
    # Qwen, QwQ, DeepSeek, SmolLM3, GLM, Kimi, MiniMax, Nemotron, Magistral of 2506, Phi-4 and most others.
    ReasoningFormat("think", "<think>", "</think>", signs=("</think>",)),
)
REASONING_FORMATS = {each.name: each for each in _ALL}


def reasoning_format_for(template: Template) -> ReasoningFormat | None:
    """The format that the chat template teaches; None: the model does not think, as far as that tells."""
    source = template.source
    return next((each for each in _ALL if all(sign in source for sign in each.signs)), None)
