"""What is in `deploy/`: it says what is true, and does what it says."""
