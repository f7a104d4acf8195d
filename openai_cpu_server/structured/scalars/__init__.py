"""The languages of what is no object and no array: numbers within bounds, patterns with look-around, formats.
`values` and `schema` call it while a schema is compiled, and `maker` for a regular expression. Promises:
exactly the texts that the standard says, or InvalidPattern with the position of what is not regular.
"""
