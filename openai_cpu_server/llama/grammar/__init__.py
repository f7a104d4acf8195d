"""Grammars, executed by llguidance.

A `Constraints` in the engine process compiles a request's Lark beside the steps (`constraints`) and follows
each output token by token (`constrained`). A reader tries the grammar on the model's vocabulary (`compile`)
before a request is accepted. `grammar_check` tries Lark on a vocabulary of bytes. A wrong or slow grammar
fails only its own request, with ConstraintFailed.
"""
