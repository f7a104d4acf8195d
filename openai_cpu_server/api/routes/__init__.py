"""One room per family of routes."""
