"""The path from a collection to a report: the stages in order, what each follows from, and how they are carried out."""
