"""What observers are told: metrics, statistics, logs, traces. It knows no HTTP."""
