"""Generation under an older server's names (`/generate` and others), for one prompt or many in one body."""
