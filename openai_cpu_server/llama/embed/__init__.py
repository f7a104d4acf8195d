"""Models that embed or score texts: nothing stays in their memory between two steps."""
