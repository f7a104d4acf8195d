"""The cores that several engines of one server share."""
