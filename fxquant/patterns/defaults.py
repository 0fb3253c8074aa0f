"""The patterns of this package, in the order in which those of one size are tried."""

from __future__ import annotations

from fxquant.patterns.batch_norm import BATCH_NORM
from fxquant.patterns.conv import CONV_PATTERNS, CONV_TRANSPOSE, RESIDUAL_PATTERNS
from fxquant.patterns.elementwise import ACTIVATION, ELEMENTWISE
from fxquant.patterns.linear import (
    DYNAMIC_LINEAR,
    EMBEDDING,
    LINEAR_PATTERNS,
    MATMUL_PATTERNS,
    PER_TOKEN_LINEAR,
    WEIGHT_ONLY_LINEAR,
)
from fxquant.patterns.norm import NORMALIZE
from fxquant.patterns.pattern import Pattern
from fxquant.patterns.pool import POOL
from fxquant.patterns.recurrent import DYNAMIC_RECURRENT, STATIC_RECURRENT
from fxquant.patterns.shape import SHAPE
from fxquant.patterns.unary import PRELU, RESCALE, UNARY

DEFAULT_PATTERNS: tuple[Pattern, ...] = (
    RESIDUAL_PATTERNS
    + CONV_PATTERNS
    + CONV_TRANSPOSE
    + LINEAR_PATTERNS
    + DYNAMIC_LINEAR
    + PER_TOKEN_LINEAR
    + STATIC_RECURRENT
    + DYNAMIC_RECURRENT
    + WEIGHT_ONLY_LINEAR
    + EMBEDDING
    + MATMUL_PATTERNS
    + BATCH_NORM
    + ELEMENTWISE
    + NORMALIZE
    + POOL
    + ACTIVATION
    + PRELU
    + RESCALE
    + UNARY
    + SHAPE
)
