"""Types that cross the boundaries between processes and packages: frozen structs, and the protocols `Engine`,
`Backend` and `Tokenizer`. This package imports nothing of the project but `errors`, and a value is valid once
it exists."""
