"""What is told to those who watch: metrics, statistics, logs, traces. Knows no HTTP."""
