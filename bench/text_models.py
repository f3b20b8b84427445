"""Text models of mindone's transformers, unmodified, with small random configurations: PyNative, GRAPH_MODE and bcvm on the same stream of shapes.

    python bench/text_models.py                     the models below
    python bench/text_models.py bert gemma_lm       some of them
    python bench/text_models.py --no-graph          GRAPH_MODE compiles for seconds a shape

Needs MindSpore, mindone 0.2.0 and what it imports. Columns as in models.py.
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from models import main

SHAPES = [(1, 16), (2, 16), (3, 48), (2, 77)]  # batch, length
WIDTH, LAYERS, HEADS, VOCABULARY = 128, 3, 4, 500
NEEDS = "pip install --no-deps mindone==0.2.0 opencv-python-headless; pip install 'transformers==4.38.*' omegaconf 'numpy<2'"


def bert_sizes(**more: Any) -> dict[str, Any]:
    return dict(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * WIDTH, max_position_embeddings=128, **more)


def t5_sizes() -> dict[str, Any]:
    """Positions go to buckets by the integer part of a logarithm. With the usual distance of 128 it is a whole number at 16, 32 and 64, where MindSpore's CPU
    kernel for log, three ulps off, lands below: its buckets depend on where in a vector a number stands. With 100 no bucket begins at a whole number."""
    return dict(relative_attention_max_distance=100, vocab_size=VOCABULARY, d_model=WIDTH, d_kv=WIDTH // HEADS, d_ff=4 * WIDTH, num_layers=LAYERS, num_heads=HEADS, decoder_start_token_id=0)


def bert(cls: str, kind: str = "BertConfig", **more: Any) -> Callable[[], Any]:
    def build() -> Any:
        import mindone.transformers as models
        import transformers
        return getattr(models, cls)(getattr(transformers, kind)(**bert_sizes(**more)))
    return build


def t5(cls: str, kind: str = "T5Config", **more: Any) -> Callable[[], Any]:
    def build() -> Any:
        import mindone.transformers as models
        import transformers
        return getattr(models, cls)(getattr(transformers, kind)(**t5_sizes(), **more))
    return build


def clip(cls: str) -> Callable[[], Any]:
    def build() -> Any:
        import mindone.transformers as models
        from transformers import CLIPTextConfig
        return getattr(models, cls)(CLIPTextConfig(**bert_sizes(), projection_dim=WIDTH, pad_token_id=1, bos_token_id=VOCABULARY - 2, eos_token_id=VOCABULARY - 1))
    return build


def gemma(cls: str, **more: Any) -> Callable[[], Any]:
    def build() -> Any:
        import mindone.transformers as models
        from transformers import GemmaConfig
        config = GemmaConfig(**bert_sizes(), num_key_value_heads=2, head_dim=WIDTH // HEADS, use_cache=False, attention_dropout=0.0, **more)
        config.hidden_activation = "gelu_pytorch_tanh"
        return getattr(models, cls)(config)
    return build


# name -> how it is built, and what a call is given besides the tokens
MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "bert": (bert("BertModel"), "mask"),
    "bert_relative": (bert("BertModel", position_embedding_type="relative_key"), "mask"),
    "bert_masked_lm": (bert("BertForMaskedLM"), ""),
    "bert_classifier": (bert("BertForSequenceClassification"), "mask"),
    "bert_decoder": (bert("BertLMHeadModel", is_decoder=True, use_cache=False), "mask"),
    "bert_decoder_step": (bert("BertLMHeadModel", is_decoder=True, use_cache=True), "past"),
    "xlm_roberta": (bert("XLMRobertaModel", "XLMRobertaConfig", pad_token_id=1), "mask"),
    "t5_encoder": (t5("T5EncoderModel"), "mask"),
    "t5": (t5("T5ForConditionalGeneration", use_cache=False), "decoder"),
    "mt5_encoder": (t5("MT5EncoderModel", "MT5Config"), "mask"),
    "mt5": (t5("MT5ForConditionalGeneration", "MT5Config", use_cache=False), "decoder"),
    "clip_text": (clip("CLIPTextModel"), ""),
    "clip_text_projection": (clip("CLIPTextModelWithProjection"), "mask"),
    "gemma": (gemma("GemmaModel"), ""),
    "gemma_lm": (gemma("GemmaForCausalLM"), "mask"),
}


def make(name: str, rng: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """The model and the arguments of one call for each of four shapes."""
    import mindspore as ms
    import numpy as np
    build, given = MODELS[name]
    stream = []
    for b, n in SHAPES:
        tokens = ms.Tensor(rng.integers(2, VOCABULARY - 2, (b, n)).astype(np.int32))
        mask = ms.Tensor((np.arange(n) < rng.integers(n // 2, n + 1, (b, 1))).astype(np.int32))
        stream.append({"": (tokens,), "mask": (tokens, mask), "decoder": (tokens, mask, tokens[:, : n // 2]),
                       "past": (tokens[:, :1], ms.Tensor(np.ones((b, n), np.int32)), None, None, None, None, None, None, None, tuple(
                           tuple(ms.Tensor(rng.standard_normal((b, HEADS, n - 1, WIDTH // HEADS)).astype(np.float32)) for _ in "kv") for _ in range(LAYERS)), True)}[given])
    return build(), stream


if __name__ == "__main__":
    sys.exit(main(__file__, __doc__ or "", list(MODELS), make, "mindone.transformers", NEEDS))
