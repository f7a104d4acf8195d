"""Grammars, which llguidance executes.

In the engine process `backend` has a `Constraints`: it compiles a request's Lark once beside the steps
(`constraints`), and follows each output token by token: what may come next, and what must (`constrained`).
In a reader process it is tried on the model's vocabulary, before anything is promised. For
`openai-cpu-server grammar`, `grammar_check` tries Lark on a vocabulary of bytes.
Promises: whatever is wrong with a grammar, or takes too long, fails its own request with ConstraintFailed.
"""
