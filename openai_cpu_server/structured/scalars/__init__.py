"""Languages of scalars: numbers within bounds, patterns with look-around, formats. Called by `values` and
`schema` while a schema is compiled, and by `compiler` for a regular expression. The languages are exact,
or InvalidPattern has the position of what is not regular."""
