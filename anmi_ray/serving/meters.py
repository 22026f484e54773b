"""Prometheus metrics of a service."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServiceMeters:
    """Counters of one service, in their own registry."""

    def __init__(self, waiting: Callable[[], int], inside: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        r = self._registry
        self._requests = Counter("anmi_requests", "Requests answered", ("path", "status"), registry=r)
        self._seconds = Histogram(
            "anmi_request_seconds", "Seconds from a request to its answer", ("path",), buckets=_SECONDS, registry=r
        )
        self._texts = Counter("anmi_texts", "Texts computed: pairs scored, and texts embedded", registry=r)
        self._tokens = Counter("anmi_tokens", "Tokens of these texts that the model has read", registry=r)
        self._batches = Histogram("anmi_batch_texts", "Texts of a batch", buckets=_TEXTS, registry=r)
        self._batch_seconds = Histogram("anmi_batch_seconds", "Seconds of a batch", buckets=_SECONDS, registry=r)
        Gauge("anmi_waiting_texts", "Texts that wait for a batch", registry=r).set_function(waiting)
        Gauge("anmi_requests_inside", "Requests that have no answer yet", registry=r).set_function(inside)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, texts: int, tokens: int, seconds: float) -> None:
        """Count a computed batch."""
        self._texts.inc(texts)
        self._tokens.inc(tokens)
        self._batches.observe(texts)
        self._batch_seconds.observe(seconds)

    def page(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)
