"""Metrics, logs, traces and recent statistics.

`Telemetry` passes finished requests and steps to the other observers, which routes read; gauges are read from
engines. Observing takes microseconds and bounded memory, and never fails a request. Only this package knows
Prometheus and OpenTelemetry.
"""
