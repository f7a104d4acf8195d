"""JSON Schema, regular expressions and lists of choices -> GBNF text. Pure: text in, text out.

The compiler is imported by its own name, `structured.compiler`: an engine process needs `structured.gbnf`
alone, and would pay for all of it at each start.
"""

from openai_cpu_server.structured.errors import (
    InvalidPattern,
    InvalidSchema,
    SchemaTooLarge,
    UnsupportedSchema,
)
from openai_cpu_server.structured.options import Limits, Options, PropertyOrder, Whitespace

__all__ = [
    "InvalidPattern",
    "InvalidSchema",
    "Limits",
    "Options",
    "PropertyOrder",
    "SchemaTooLarge",
    "UnsupportedSchema",
    "Whitespace",
]
