"""The page that people open in a browser: its sources, and what `scripts/page` has built of them."""
