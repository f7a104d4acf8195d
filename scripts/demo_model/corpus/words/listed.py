"""Lists written as text."""


def listed(text: str) -> tuple[str, ...]:
    """The words between the commas."""
    return tuple(word.strip() for word in " ".join(text.split()).split(","))
