"""The store: what stages made, on any pyarrow filesystem, resumable by running again.

One root holds `artifacts/<stage>/<fingerprint>/` (immutable, shared by every run) and `runs/<name>.json` (which
fingerprint each stage of a run uses). Nothing written carries a time, so a rerun publishes the same bytes.
"""

from anmi_ray.store.artifact import Artifact, Flow, add_flows, fingerprint
from anmi_ray.store.files import Store, open_filesystem, public_root
from anmi_ray.store.parquet import parquet_bytes

__all__ = [
    "Artifact",
    "Flow",
    "Store",
    "add_flows",
    "fingerprint",
    "open_filesystem",
    "parquet_bytes",
    "public_root",
]
