"""Rules for the values of a branch: shapes of objects and arrays, languages of strings and numbers. Called
by `compiler` for each value of a schema. Properties stand in the order of the options, and no value is
there twice. A value that cannot be written raises, and the compiler names its place."""
