"""Facts about one type of value -> the grammar of such values."""
