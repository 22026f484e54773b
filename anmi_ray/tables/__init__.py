"""Anyone's tables and files: formats, rows checked one by one, TREC's runs and qrels."""
