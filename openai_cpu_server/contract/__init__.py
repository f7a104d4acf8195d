"""What crosses the borders between processes and rooms: frozen structs, and the protocols `Engine`, `Backend`
and `Tokenizer`. Everybody may import it; it imports nothing of ours but `errors`.

`messages` are what an API process and an engine tell each other, `request` and `embedding` what is asked,
`step` what a backend executes, `figures` what a request came to, `model_info` what is known of a model,
`replica` what those are told who choose between engines.

It promises that a value is valid once it exists, and that a field has one home: defaults, bounds and figures
are written here, and rendered elsewhere.
"""
