"""A tuning campaign as a Ray job: `anmi tune` on the cluster that runs it. `anmi jobs submit tune` starts the same.

ray job submit --working-dir . -- python jobs/tune.py CONFIG [key=value ...] [--root ...]

The root must be storage that every node reaches. A job that died is submitted again and goes on.
"""

import sys

from anmi_ray.cli import main

if __name__ == "__main__":
    main(["tune", *sys.argv[1:], "execution.address=auto"])
