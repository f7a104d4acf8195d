"""Pages of the manual that list what the code has."""
