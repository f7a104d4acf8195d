"""The protocol of a way to write tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from openai_cpu_server.prompt.tool_formats.patterns import Spelling
from openai_cpu_server.prompt.tool_formats.reader import OutputReader

RawNames = Mapping[str, frozenset[str]]
"""For each function that may be called: its parameters that are written as raw text. {}: any function."""


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a function, for formats that write each by itself."""

    name: str
    is_required: bool
    rule: str
    """The grammar's rule for its value as JSON."""
    is_text: bool = False
    """It is any string, or one of `choices`: it may be written raw."""
    choices: tuple[str, ...] = ()
    is_boolean: bool = False
    """It is true or false."""


class Callee(msgspec.Struct, frozen=True):
    """A function in the grammar of calls."""

    name: str
    rule: str
    """The grammar's rule for its arguments as one JSON object."""
    parameters: tuple[Parameter, ...] = ()


class WrittenCall(msgspec.Struct, frozen=True):
    name: str
    arguments: Mapping[str, object]


class ToolFormat(Protocol):
    """How a family of models writes calls. Grammars are GBNF: the root's expression, then lines of rules."""

    @property
    def name(self) -> str:
        """The name in `--tool-format`."""
        ...

    @property
    def marker(self) -> str:
        """The text (a control token by its name) behind which calls begin in free text; "": there is none,
        the whole output has a grammar."""
        ...

    @property
    def splits_parameters(self) -> bool:
        """Whether each parameter is written by itself; else the arguments are one JSON object."""
        ...

    def announces(self, spelling: Spelling) -> bool:
        """Whether a control token tells calls from any text in this model's outputs."""
        ...

    @property
    def replaces_template(self) -> bool:
        """Whether tools and calls are told in words, whatever the template would show."""
        ...

    def recognises(self, template: str) -> bool:
        """Whether the source of a chat template teaches this format."""
        ...

    def behind_marker(self, callees: Sequence[Callee], spelling: Spelling, *, several: bool) -> str:
        """The grammar of everything behind the marker, up to the output's end."""
        ...

    def whole(
        self, callees: Sequence[Callee], spelling: Spelling, *, several: bool, answer: str | None
    ) -> str:
        """The grammar of a whole output. `answer`: the rule for text that is no call; "": any text;
        None: there must be calls."""
        ...

    def raw_parameters(self, callee: Callee) -> frozenset[str]:
        """The parameters whose values stand in the output as raw text."""
        ...

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """Calls as the model would have written them."""
        ...

    def history_id(self, call_id: str) -> str:
        """The id of an earlier call, in the form that the template wants."""
        ...

    def reader(self, functions: RawNames, *, at_start: bool = False) -> OutputReader:
        """A reader for one output. With `at_start` the output begins with calls or has none."""
        ...
