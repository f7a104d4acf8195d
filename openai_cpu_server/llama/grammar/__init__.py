"""Grammars, executed by llguidance.

`backend` in the engine process has a `Constraints`, which compiles a request's Lark once beside the steps
(`constraints`) and follows each output token by token (`constrained`). A reader process tries the grammar on
the model's vocabulary before a request is accepted. `grammar_check` tries Lark on a vocabulary of bytes, for
`openai-cpu-server grammar`. A wrong or slow grammar fails only its own request, with ConstraintFailed.
"""
