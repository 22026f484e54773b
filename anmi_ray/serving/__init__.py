"""A trained reranker as an HTTP service on Ray Serve, in the shapes that clients of other rerankers speak."""
