"""The main path as a Ray job: `anmi run` on the cluster that runs the job. `anmi jobs submit pipeline` starts the same.

ray job submit --working-dir . -- python jobs/pipeline.py CONFIG [key=value ...] [--root ...] [--from ...] [--until ...]

The root must be storage that every node reaches.
"""

import sys

from anmi_ray.cli import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:], "execution.address=auto"])
