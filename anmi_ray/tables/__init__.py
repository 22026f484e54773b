"""Users' tables and files: formats, checked rows, TREC's runs and qrels."""
