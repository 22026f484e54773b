"""Judges and their audit: who prefers which document, in both orders, and how far to trust them."""

from anmi_ray.judging.audit import audit
from anmi_ray.judging.confirmation import confirmations
from anmi_ray.judging.imported import Imported, read_judgments
from anmi_ray.judging.panel import judge, truth

__all__ = ["Imported", "audit", "confirmations", "judge", "read_judgments", "truth"]
