# SPDX-License-Identifier: Apache-2.0
"""What processes with vLLM find here: the variables, and the plugin that counts CPUs as devices.

Import it before vLLM and Ray; what they start inherits it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Importlib finds the entry points of what is installed in a folder of the path, here and in actors.
PLUGINS = tempfile.TemporaryDirectory(prefix="rcg-vllm-")
_INSTALLED = Path(PLUGINS.name, "rcg_vllm_tests-0.dist-info")
_INSTALLED.mkdir()
(_INSTALLED / "METADATA").write_text("Metadata-Version: 2.1\nName: rcg-vllm-tests\nVersion: 0\n")
(_INSTALLED / "entry_points.txt").write_text(
    "[vllm.platform_plugins]\ncounted_cpus = tests.vllm.plugin:platform\n"
)
sys.path[:0] = [str(ROOT), PLUGINS.name]
os.environ |= {
    "PYTHONPATH": os.pathsep.join([str(ROOT), PLUGINS.name]),
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_LOG_TO_DRIVER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "180",
    # Ranks spin for each other in shared memory: on a busy machine, at a low priority, for minutes.
    "RAY_worker_niceness": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
