# SPDX-License-Identifier: Apache-2.0
"""One Ray and one model for all tests with vLLM."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tests.vllm.environment  # noqa: F401 - before vLLM and Ray are imported


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    import ray

    ray.init(num_cpus=4, num_gpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a small model."""
    from tests.vllm.model import save

    return save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def engines(model: str) -> Callable[..., Any]:
    """Makes engines, with the arguments of ``LLM``; each ends with its ``with`` block."""
    from tests.vllm.model import engine

    @contextlib.contextmanager
    def running(**options: Any) -> Iterator[Any]:
        made = engine(model, **options)
        try:
            yield made
        finally:
            made.llm_engine.engine_core.shutdown()

    return running


@pytest.fixture(scope="session")
def expected(engines: Callable[..., Any]) -> list[list[int]]:
    """The greedy tokens of one process."""
    from tests.vllm.model import TOKENS, generate

    with engines() as llm:
        tokens = generate(llm)
    assert [len(each) for each in tokens] == [TOKENS] * len(tokens)
    assert all(len(set(each)) > 2 for each in tokens), "weights that make all tokens equal"
    return tokens
