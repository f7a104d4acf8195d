"""The choice between several engines, and of their number. Pure: time and chance are arguments."""
