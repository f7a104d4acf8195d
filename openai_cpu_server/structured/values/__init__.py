"""What a branch allows -> rules: the shapes of objects and arrays, the languages of strings and numbers.
`compiler` calls it for each value that a schema has. Promises: properties in the order of the options, no
value twice; what cannot be written down raises, and the compiler names its place.
"""
