#!/usr/bin/env bash
# What both images have below the Python packages: system packages, a user who is not root, the interpreter, PATH.
#
#   system.sh PYTHON_VERSION [PACKAGE ...]
set -euo pipefail
python=$1
shift

export DEBIAN_FRONTEND=noninteractive
apt-get update
# g++: kernels and DeepSpeed's operations, compiled where they first run; rsync: `ray up`; wget: KubeRay's probes
apt-get install -y --no-install-recommends ca-certificates g++ rsync wget "$@"
ln -s /usr/lib/jvm/java-21-openjdk-* /opt/java # JAVA_HOME, on either architecture
rm -rf /var/lib/apt/lists/*

# Ubuntu's image has a user of this number
userdel --remove ubuntu 2>/dev/null || true
groupadd --gid 1000 anmi
useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash anmi

UV_PYTHON_INSTALL_DIR=/opt/python uv python install "$python"
UV_PYTHON_INSTALL_DIR=/opt/python uv venv --managed-python --python "$python" /opt/venv

# a login shell sets PATH anew, and `ray up` starts one
# shellcheck disable=SC2016
echo 'export PATH=/opt/venv/bin:$PATH' >/etc/profile.d/anmi.sh
