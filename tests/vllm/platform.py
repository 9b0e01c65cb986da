# SPDX-License-Identifier: Apache-2.0
"""CPUs as devices that Ray counts: vLLM's executors on Ray ask for the name of such devices."""

import os

from vllm.platforms.cpu import CpuPlatform

STEPS_AHEAD = "TESTS_STEPS_AHEAD"
"""The variable that leaves asynchronous scheduling on, which vLLM turns off on CPUs."""


class CountedCpus(CpuPlatform):
    ray_device_key = "GPU"

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        is_ahead = vllm_config.scheduler_config.async_scheduling and STEPS_AHEAD in os.environ
        super().check_and_update_config(vllm_config)
        vllm_config.scheduler_config.async_scheduling = is_ahead
        vllm_config.parallel_config.worker_cls = "tests.vllm.worker.StageOnCpus"
