"""What steps cost here, and where measurements are kept."""
