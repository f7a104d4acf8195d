"""Types that cross the boundaries between processes and packages: frozen structs, and the protocols `Engine`,
`Backend` and `Tokenizer`. This package imports nothing of the project but `errors`.

`messages` has the commands and events of an engine process, `request` and `embedding` its requests, and
`step` the input of a backend. A value is valid once it exists. Defaults, bounds and counts are defined here
once and rendered elsewhere.
"""
