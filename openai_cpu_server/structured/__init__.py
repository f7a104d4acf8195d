"""JSON Schema, regular expressions and lists of choices -> GBNF text. Pure: text in, text out."""

from openai_cpu_server.structured.compiler import CompiledSchema, compile_schema, schema_to_gbnf
from openai_cpu_server.structured.errors import (
    InvalidPattern,
    InvalidSchema,
    SchemaTooLarge,
    UnsupportedSchema,
)
from openai_cpu_server.structured.extras import choice_to_gbnf, json_object_gbnf, regex_to_gbnf
from openai_cpu_server.structured.options import Limits, Options, PropertyOrder, Whitespace
from openai_cpu_server.structured.report import Unenforced
from openai_cpu_server.structured.writing.compose import compose

__all__ = [
    "CompiledSchema",
    "InvalidPattern",
    "InvalidSchema",
    "Limits",
    "Options",
    "PropertyOrder",
    "SchemaTooLarge",
    "Unenforced",
    "UnsupportedSchema",
    "Whitespace",
    "choice_to_gbnf",
    "compile_schema",
    "compose",
    "json_object_gbnf",
    "regex_to_gbnf",
    "schema_to_gbnf",
]
