"""People check judges: the pairs that they answer, the page that asks, and files for other tools."""
