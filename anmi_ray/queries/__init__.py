"""Queries made of documents alone, without a model: what a document offers, which offers are taken, what is masked.

Pure functions over titles and texts. `anmi_ray/api/queries.py` reads the collection and joins them with BM25.
"""
