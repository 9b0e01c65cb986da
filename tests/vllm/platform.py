# SPDX-License-Identifier: Apache-2.0
"""CPUs as devices that Ray counts: vLLM's executors on Ray ask for the name of such devices."""

from vllm.platforms.cpu import CpuPlatform


class CountedCpus(CpuPlatform):
    ray_device_key = "GPU"

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        super().check_and_update_config(vllm_config)
        vllm_config.parallel_config.worker_cls = "tests.vllm.worker.StageOnCpus"
