"""Types that cross the boundaries between processes and packages: frozen structs, and the protocols `Engine`,
`Backend` and `Tokenizer`. Every package may import this one, which imports nothing of the project but
`errors`.

`messages` has the commands and events of an engine process. `request` and `embedding` are its requests,
`step` is the input of a backend, `figures` counts a request's work. `model_info` has facts about a model, and
`replica` has what a router knows of engines.

A value is valid once it exists. Defaults, bounds and counts are defined here once and rendered elsewhere.
"""
