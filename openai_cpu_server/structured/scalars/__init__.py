"""Languages of the text of numbers and strings: bounds, formats, patterns."""
