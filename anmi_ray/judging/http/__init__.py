"""Judges and rerankers behind HTTP: who may be asked, how fast, and what a failure means."""
