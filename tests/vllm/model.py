# SPDX-License-Identifier: Apache-2.0
"""A small Llama with random weights, which tests save once and generate with."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPTS = [[1, 5, 9, 13], [7] * 40, list(range(100, 120))]
TOKENS = 24
OPTIONS = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "block_size": 32,
    "kv_cache_memory_bytes": 64 << 20,
    "disable_log_stats": True,
    "enable_prefix_caching": False,
}
"""Of an engine with this model."""


def save(folder: Path) -> str:
    torch.manual_seed(20)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=2048,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return str(folder)


def engine(model: str, **options):
    from vllm import LLM

    return LLM(model, **OPTIONS, **options)


def generate(llm, tokens: int = TOKENS) -> list[list[int]]:
    """The greedy tokens of each prompt."""
    from vllm import SamplingParams

    chosen = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    results = llm.generate([{"prompt_token_ids": each} for each in PROMPTS], chosen, use_tqdm=False)
    return [list(result.outputs[0].token_ids) for result in results]
