"""Languages of scalars: numbers within bounds, patterns with look-around, formats. They are exact, or
InvalidPattern has the position of what is not regular."""
