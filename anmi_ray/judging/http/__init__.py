"""Judges and rerankers behind HTTP: connections, rate limits, retries, and the formats of servers."""
