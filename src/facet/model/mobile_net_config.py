"""Reads the part of Gemma 3n's `config.json` that describes its tower, which it does by the name of an architecture."""

from facet.model.config_fields import ConfigFields
from facet.vision_spec import AttentionBlockSpec, BlockSpec, EdgeBlockSpec, InvertedBlockSpec, MobileNetSpec

ARCHITECTURE = "mobilenetv5_300m_enc"
_STEM_WIDTH = 64
_CHANNELS = (128, 256, 640, 1280)  # of each stage


def read_mobile_net(top: ConfigFields, vision: ConfigFields, output_size: int) -> MobileNetSpec:
    if vision.text("architecture", ARCHITECTURE) != ARCHITECTURE:
        raise vision.wrong("architecture", f"{ARCHITECTURE}, the tower of every Gemma 3n")
    arguments = vision.section("model_args")
    if unknown := set(arguments.names()) - {"channel_multiplier"}:
        raise vision.wrong("model_args", f"without {', '.join(sorted(unknown))}: only channel_multiplier is known")
    multiplier = arguments.number("channel_multiplier", 1.0)
    # A narrower network keeps the width of its first convolution.
    stem_width = _STEM_WIDTH if multiplier < 1 else _rounded(_STEM_WIDTH * multiplier)
    channels = [_rounded(count * multiplier) for count in _CHANNELS]
    first_id = vision.integer("vocab_offset", 262_144)
    fused, hidden = channels[-2] + channels[-1], vision.integer("hidden_size", 2048)
    return MobileNetSpec(
        stem_width=stem_width,
        stages=(
            _edge_stage(stem_width, channels[0]),
            _first_inverted_stage(channels[0], channels[1]),
            _attention_stage(channels[1], channels[2], num_convolutions=7, num_heads=12, head_dim=64, key_stride=2),
            _attention_stage(channels[2], channels[3], num_convolutions=0, num_heads=16, head_dim=96, key_stride=1),
        ),
        fusion=InvertedBlockSpec(
            num_inputs=fused, num_outputs=hidden, width=_rounded(2 * fused), is_scaled=False, may_skip=False
        ),
        rows_per_side=16,
        norm_eps=vision.number("rms_norm_eps", 1e-6),
        table_ids=range(first_id, first_id + vision.integer("vocab_size", 128)),
        output_size=output_size,
    )


def _edge_stage(num_inputs: int, channels: int) -> tuple[BlockSpec, ...]:
    first = EdgeBlockSpec(
        num_inputs=num_inputs, num_outputs=channels, width=_rounded(4 * num_inputs), kernel_size=3, stride=2
    )
    other = EdgeBlockSpec(
        num_inputs=channels, num_outputs=channels, width=_rounded(4 * channels), kernel_size=3, stride=1
    )
    return (first, other, other)


def _first_inverted_stage(num_inputs: int, channels: int) -> tuple[BlockSpec, ...]:
    first = _shrinking(num_inputs, channels, start_kernel_size=3)
    return (first, *(_inverted(channels, 4, start_kernel_size=size) for size in (5, 3, 5, 3)))


def _attention_stage(
    num_inputs: int, channels: int, *, num_convolutions: int, num_heads: int, head_dim: int, key_stride: int
) -> tuple[BlockSpec, ...]:
    """Convolutions, if there are any, and attention in turn with products."""
    start: list[BlockSpec] = [_shrinking(num_inputs, channels, start_kernel_size=5)]
    start += [_inverted(channels, 4, start_kernel_size=5)] * num_convolutions
    if num_convolutions:
        start.append(_inverted(channels, 1))
    attention = AttentionBlockSpec(num_channels=channels, num_heads=num_heads, head_dim=head_dim, key_stride=key_stride)
    pair: list[BlockSpec] = [attention, _inverted(channels, 2)]
    return (*start, *pair * (14 if num_convolutions else 19))


def _shrinking(num_inputs: int, channels: int, *, start_kernel_size: int) -> InvertedBlockSpec:
    return InvertedBlockSpec(
        num_inputs=num_inputs,
        num_outputs=channels,
        width=_rounded(6 * num_inputs),
        start_kernel_size=start_kernel_size,
        middle_kernel_size=5,
        stride=2,
    )


def _inverted(channels: int, expansion: int, *, start_kernel_size: int = 0) -> InvertedBlockSpec:
    width = _rounded(expansion * channels)
    return InvertedBlockSpec(
        num_inputs=channels, num_outputs=channels, width=width, start_kernel_size=start_kernel_size
    )


def _rounded(count: float) -> int:
    """Rounds to a multiple of eight, which may be a tenth too small and no more."""
    rounded = max(8, int(count + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * count else rounded
