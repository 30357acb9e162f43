"""The server's own measurements, in Prometheus' form. Each application has its own registry, never the global one.

Requests are labelled by the route's template, never by the path: a label is a time series, and paths come from users.
"""

from __future__ import annotations

from collections.abc import Mapping

import prometheus_client
from prometheus_client import exposition

from oarlock.spec import phases

CONTENT_TYPE = exposition.CONTENT_TYPE_LATEST
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LONG = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)


class Meters:
    """Counters and histograms. The code that does the work updates them, from any thread."""

    def __init__(self) -> None:
        registry = prometheus_client.CollectorRegistry()
        self._registry = registry
        self.jobs = prometheus_client.Gauge("oarlock_jobs", "Jobs by phase.", ["phase"], registry=registry)
        self.leader_epoch = prometheus_client.Gauge(
            "oarlock_leader_epoch", "Epoch of the present leader; 0: none yet.", registry=registry
        )
        self.event_seq = prometheus_client.Gauge("oarlock_event_seq", "Last line of the event log.", registry=registry)
        self.held_devices = prometheus_client.Gauge(
            "oarlock_devices_held", "Devices that jobs hold.", registry=registry
        )
        self.nodes_missing = prometheus_client.Gauge(
            "oarlock_nodes_missing",
            "Nodes that waiting jobs lack, by class, for an autoscaler to add.",
            ["node_class"],
            registry=registry,
        )
        self.queue_wait_s = prometheus_client.Histogram(
            "oarlock_queue_wait_seconds",
            "From the submission of a job to the launch of its first attempt.",
            buckets=_LONG,
            registry=registry,
        )
        self.tick_s = prometheus_client.Histogram(
            "oarlock_tick_seconds", "Time of one round of a control loop.", ["loop"], buckets=_FAST, registry=registry
        )
        self.tick_failures = prometheus_client.Counter(
            "oarlock_tick_failures", "Rounds of a control loop that failed.", ["loop"], registry=registry
        )
        self.request_s = prometheus_client.Histogram(
            "oarlock_http_request_seconds",
            "Time to the end of an answer, by route, without long polls and streams.",
            ["method", "route", "status"],
            buckets=_FAST,
            registry=registry,
        )
        self.log_bytes = prometheus_client.Counter(
            "oarlock_log_bytes", "Log bytes that were acknowledged.", registry=registry
        )
        self.waiting = prometheus_client.Gauge(
            "oarlock_long_polls", "Requests that wait for an event.", registry=registry
        )

    def ticked(self, name: str, duration_s: float) -> None:
        """Record the duration of one round of a control loop (`controllers.running.Observer`)."""
        self.tick_s.labels(name).observe(duration_s)

    def failed(self, name: str) -> None:
        """Count a round of a control loop that failed."""
        self.tick_failures.labels(name).inc()

    def counted(self, jobs: Mapping[phases.Phase, int]) -> None:
        """Set the numbers of jobs by phase."""
        for phase in phases.Phase:
            self.jobs.labels(phase.value).set(jobs.get(phase, 0))

    def exposition(self) -> bytes:
        """Return all measurements as Prometheus' text."""
        return exposition.generate_latest(self._registry)
