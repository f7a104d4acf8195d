"""JSON Schema, regular expressions, lists of choices and GBNF -> one grammar, made once. Pure.

A reader process calls `maker` for each grammar that it has not made yet: the schema becomes rules of
expressions (`compiler`), and these become the Lark text that llguidance runs (`lark`). It crosses to the
engine ready to run. Users' own GBNF comes in through `gbnf`; `openai-cpu-server grammar` prints what a schema
becomes. It promises a grammar with exactly the values of the schema, or an error that names what cannot be
enforced; limits are counted, not timed. All of it is imported by module: no other process pays for it.
"""
