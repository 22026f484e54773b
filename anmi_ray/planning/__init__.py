"""`anmi plan`: what the stages of a run would do, take and cost."""
