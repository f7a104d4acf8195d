"""Metrics, logs, traces and statistics of the last minutes.

`Telemetry` passes every finished request and every step to the other observers, which routes read; gauges are
read from the engines. Observing costs microseconds and holds a bounded amount of data. A failure here never
fails a request. Only this package knows Prometheus and OpenTelemetry.
"""
