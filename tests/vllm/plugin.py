# SPDX-License-Identifier: Apache-2.0
"""vLLM's plugin of the tests, which vLLM calls while it is being imported itself."""


def platform() -> str:
    return "tests.vllm.platform.CountedCpus"
