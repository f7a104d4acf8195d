"""Metrics, logs, traces and statistics of the last minutes.

`Telemetry` receives every finished request (`ended`) and every step, and passes them to the other observers.
Routes read these for `/metrics` and `/v1/stats`; gauges are read from the engines at that moment. Observing
costs microseconds per request or step and holds a bounded amount of data. A failure here never fails a
request. Only this package knows Prometheus and OpenTelemetry.
"""
