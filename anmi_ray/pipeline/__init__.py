"""The pipeline from a collection to a report: the stages in order, their inputs, and how they are run."""
