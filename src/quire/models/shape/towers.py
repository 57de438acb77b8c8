"""Decoders inside models that see images: their own fields, as a family that is known by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.models.shape.families import FamilyFacts, find_family
from quire.models.shape.fields import ConfigFields
from quire.models.shape.understood import is_of_images

_OF_THE_WHOLE = ("quantization_config", "dtype", "torch_dtype")
"""Fields that may be beside those of the decoder, and hold for it."""
_TIED, _ENDS = "tie_word_embeddings", "eos_token_id"
_IN_CODE: Mapping[str, Mapping[str, Any]] = {"qwen3_vl_moe_text": {"norm_topk_prob": True}}
"""What a decoder does in a whole, whatever its own fields say."""

WITH_IMAGES: Mapping[str, str] = {
    model_type: f"{name}ForConditionalGeneration"
    for model_type, name in (
        ("aya_vision", "AyaVision"),
        ("cohere2_vision", "Cohere2Vision"),
        ("deepseek_vl", "DeepseekVL"),
        ("exaone4_5", "Exaone4_5_"),
        ("gemma3", "Gemma3"),
        ("gemma3n", "Gemma3n"),
        ("gemma4", "Gemma4"),
        ("gemma4_unified", "Gemma4Unified"),
        ("glm4v", "Glm4v"),
        ("glm46v", "Glm46V"),
        ("glm4v_moe", "Glm4vMoe"),
        ("glm_ocr", "GlmOcr"),
        ("hyperclovax_vision_v2", "HyperCLOVAXVisionV2"),
        ("idefics2", "Idefics2"),
        ("idefics3", "Idefics3"),
        ("internvl", "InternVL"),
        ("kimi_k25", "Kimi_K25"),
        ("lfm2_vl", "Lfm2Vl"),
        ("lfm3_vl", "Lfm3Vl"),
        ("lighton_ocr", "LightOnOcr"),
        ("llama4", "Llama4"),
        ("llava", "Llava"),
        ("llava_next", "LlavaNext"),
        ("llava_onevision", "LlavaOnevision"),
        ("minicpmv4_6", "MiniCPMV4_6"),
        ("minicpmv4_7", "MiniCPMV4_7"),
        ("mistral3", "Mistral3"),
        ("muse_glimmer", "MuseGlimmer"),
        ("ovis2", "Ovis2"),
        ("qianfan_ocr", "QianfanOCR"),
        ("qwen2_vl", "Qwen2VL"),
        ("qwen2_5_vl", "Qwen2_5_VL"),
        ("qwen3_vl", "Qwen3VL"),
        ("qwen3_vl_moe", "Qwen3VLMoe"),
        ("qwen3_5", "Qwen3_5"),
        ("qwen3_5_moe", "Qwen3_5Moe"),
        ("smolvlm", "SmolVLM"),
        ("video_llama_3", "VideoLlama3"),
    )
}
"""Models whose decoder is served, by type: of texts it computes what it computes by itself."""
_AS_PUBLISHED = ("KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration")


def decoder_of(fields: ConfigFields) -> ConfigFields | None:
    """The fields of the decoder, with its class; None: this is no model that sees images, or the
    family of its decoder is not known.

    Sizes that the section of the decoder leaves out are those of its family.
    """
    inner = fields.values.get("text_config")
    if isinstance(inner, dict):
        kind = str(inner.get("model_type"))
        family = find_family(None, kind)
        if family is None:
            return None
        shared = {name: fields.values[name] for name in _OF_THE_WHOLE if name in fields}
        own = {name: fields.values[name] for name in (_TIED, _ENDS) if name in fields}
        if inner.get(_TIED) is True:  # of a head that is not stored, whatever the whole says
            own[_TIED] = True
        given = {**dict(family.inside), **shared, **inner, **own, **_IN_CODE.get(kind, {})}
        return _as_decoder(fields, family, given)
    family = find_family(None, fields.get("model_type", str, ""))
    if family is None or not is_with_images(fields):
        return None
    plain = {name: value for name, value in fields.values.items() if not _is_beside(name)}
    return _as_decoder(fields, family, plain)


def is_with_images(fields: ConfigFields) -> bool:
    """Whether the decoder in the model is served."""
    named = fields.get("architectures", list, [])
    if named:
        return named[0] in (*WITH_IMAGES.values(), *_AS_PUBLISHED)
    return fields.get("model_type", str, "") in WITH_IMAGES


def _is_beside(name: str) -> bool:
    return is_of_images(name) and name != _ENDS


def _as_decoder(
    fields: ConfigFields, family: FamilyFacts, values: Mapping[str, Any]
) -> ConfigFields:
    """The decoder's fields, named as the family itself names them."""
    named = {"architectures": [family.architecture], "model_type": family.model_type}
    return fields.holding({**values, **named})
