"""The audit of judges: what each does with order, ties and circles, how they agree, and the pilot that tries them."""

from anmi_ray.judging.audit.panel_audit import audit

__all__ = ["audit"]
