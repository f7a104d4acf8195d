"""Grammars, executed by llguidance. The engine compiles a request's Lark beside the steps and follows each
output token by token; a reader tries the grammar on the model's vocabulary before. A wrong or slow grammar
fails only its own request, with ConstraintFailed."""
