"""Which ops autocast runs in which precision: torch's lists, by op."""

from __future__ import annotations

#: what gains from less precision
LOWER = frozenset(("addmm", "attention", "baddbmm", "convolution", "linear", "matmul", "prelu"))

#: what needs all of it
FLOAT32 = frozenset((
    "acos", "asin", "binary_cross_entropy_with_logits", "cosh", "cosine_similarity", "cumprod", "cumsum", "erfinv",
    "exp", "expm1", "group_norm", "huber_loss", "layer_norm", "log", "log10", "log1p", "log2", "logsumexp",
    "mse_loss", "nll_loss", "pow", "reciprocal", "rms_norm", "rsqrt", "sinh", "smooth_l1_loss", "soft_margin_loss",
    "softplus", "tan", "vector_norm",
))  # fmt: skip

#: what gives all of it, unless a dtype is asked for: the operand stays what it is
FLOAT32_RESULT = frozenset(("log_softmax", "prod", "softmax", "sum"))

#: what takes operands of one dtype only: the widest among them
WIDEST = frozenset(("addcdiv", "addcmul", "atan2", "cat", "index_put", "lerp", "scatter_add"))
