"""What the families of Hugging Face configs share: what a config leaves to its class, and what no config says.

What could be wrong: defaults are those of the classes in transformers 5; an older class may have had others, but its
configs name what matters. A test compares parameter counts with models that transformers makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """What holds for a kind of model. `defaults` are those of its config class, by the config's own names.

    `windows`: "never", "uniform" (`sliding_window`, where set, holds for all layers), "asked" (only with
    `use_sliding_window`), or "every" (each `full_every`-th layer sees everything). `position_rows`: rows of a learned
    position table beyond the longest context, None where positions are rotated. `latent`: attention over a
    compressed cache. `routed`: the MLPs are experts. A bias that is a text is the config's flag of that name.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    gated: bool = True
    tied: bool = False
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: str | None = None
    sinks: bool = False
    norm: str = "rmsnorm"
    norms: int = 2
    parallel: bool = False
    position_rows: int | None = None
    windows: str = "never"
    full_every: int = 2
    latent: bool = False
    routed: bool = False
    expert_bias: bool = False
    router_bias: bool = False


_LLAMA = Family(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")
_DEEPSEEK_V2 = Family(
    latent=True, routed=True, defaults={
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "n_shared_experts": 2, "n_routed_experts": 64, "moe_intermediate_size": 1407, "first_k_dense_replace": 0,
    },
)  # fmt: skip
_DEEPSEEK_V3 = Family(
    latent=True, routed=True, router_bias=True, defaults={
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
    },
)  # fmt: skip
_GEMMA3 = Family(
    tied=True, qk_norm="per_head", norms=4, windows="every", full_every=6, defaults={
        "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "sliding_window": 4096, "max_position_embeddings": 131_072,
    },
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(windows="uniform", defaults={"num_key_value_heads": 8}),
    "mixtral": Family(windows="uniform", routed=True, defaults={
        "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    }),
    "qwen2": Family(qkv_bias=True, windows="asked"),
    "qwen2_moe": Family(qkv_bias="qkv_bias", windows="asked", routed=True, defaults={
        "qkv_bias": True, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    }),
    "qwen3": Family(qk_norm="per_head", windows="asked", qkv_bias="attention_bias", o_bias="attention_bias",
                    defaults={"head_dim": 128}),
    "qwen3_moe": Family(qk_norm="per_head", windows="asked", routed=True, qkv_bias="attention_bias",
                        o_bias="attention_bias", defaults={
        "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    }),
    "gemma2": Family(tied=True, norms=4, windows="every", full_every=2, defaults={
        "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    }),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "gpt_oss": Family(qkv_bias=True, o_bias=True, mlp_bias=True, sinks=True, windows="every", full_every=2, routed=True,
                      expert_bias=True, router_bias=True, defaults={
        "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "num_local_experts": 128,
        "num_experts_per_tok": 4,
    }),
    "phi3": Family(windows="uniform"),
    "phi": Family(gated=False, qkv_bias=True, o_bias=True, mlp_bias=True, norm="layernorm", norms=1, parallel=True),
    "opt": Family(gated=False, tied=True, qkv_bias=True, o_bias=True, mlp_bias=True, norm="layernorm", position_rows=2,
                  defaults={"max_position_embeddings": 2048}),
    "gpt2": Family(gated=False, tied=True, qkv_bias=True, o_bias=True, mlp_bias=True, norm="layernorm", position_rows=0,
                   defaults={"n_positions": 1024}),
}  # fmt: skip
"""`model_type` -> family. A newer kind that is built like one of these needs a line here and a test."""

TYPE_OF: Mapping[str, str] = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2", "Qwen2MoeForCausalLM": "qwen2_moe", "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe", "Gemma2ForCausalLM": "gemma2", "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3", "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3", "GptOssForCausalLM": "gpt_oss", "Phi3ForCausalLM": "phi3",
    "PhiForCausalLM": "phi", "OPTForCausalLM": "opt", "GPT2LMHeadModel": "gpt2",
}  # fmt: skip
"""Architecture -> `model_type`, for configs that name only the one."""
