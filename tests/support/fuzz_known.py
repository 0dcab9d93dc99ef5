"""Where torch and numpy may differ: rows that excuse differences which the random calls of `tests.support.fuzz` find.

Only a difference between two results, or an error of one engine alone, can be excused. A crash, a hang, uninitialised
memory, or a result of another type than the inferred one never is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: the beginnings of the reports that a row may excuse
EXCUSABLE = ("result ", "only torch fails", "only numpy fails")


@dataclass(frozen=True)
class Known:
    #: the op and the report, as regular expressions; the case must match ``case`` too
    op: str
    report: str
    why: str
    case: str = ""


KNOWN: list[Known] = [
    Known(
        "(lstm|gru|rnn_tanh|rnn_relu)",
        "^result ",
        "rounding grows with each step of a long sequence",
        case=r"\[100, ",
    ),
    Known(
        "(lstm|gru|rnn_tanh|rnn_relu)(_cell)?",
        "^result .*nan",
        "a sum of products overflows to infinities of both signs, or does not, by the order of its terms",
        case="extreme",
    ),
    Known(
        "(lstm|gru|rnn_tanh|rnn_relu)_backward",
        "^result ",
        "torch computes the output again; numpy takes the one it is given, which a random call did not compute",
    ),
    Known(
        ".*",
        r"^result .*(nan|inf)",
        "what becomes of the other part of an infinite complex number differs between libraries",
        case="complex|fft",
    ),
    Known(
        ".*",
        "only torch fails.*(without overflow|int too big|Promotion for uint16|can't be cast)",
        "torch refuses a number that its dtype cannot hold; numpy wraps it, or makes it infinite",
    ),
    Known(
        "gelu",
        r"^result 0: torch \[-?(nan|inf)",
        "0 times infinity, or a product at the end of the range, in torch's vector loop on x86-64",
        case=":(special|extreme)",
    ),
    Known("standard_gamma_grad", "^result 0", "torch approximates it to three digits, and to 0 or NaN far out"),
    Known(
        "standard_gamma", "^result 0", "a candidate is accepted or refused by a rounding", case=":(special|extreme|far)"
    ),
    Known(
        "grid_sample.*",
        "^result",
        "which element belongs to a position that is NaN, infinite or far outside depends on the machine",
        case=":(special|extreme|far)",
    ),
    Known("logit", "^result 0: torch", "clamped to [1, 0]: which end wins is the machine's", case="eps=(1|True)"),
    Known(
        "cholesky",
        "only (torch|numpy) fails",
        "NaN, or a pivot that overflows: an error by some libraries, NaN by others",
        case=":(special|extreme)",
    ),
    Known(
        "batch_norm_inference",
        "only torch fails.*eps must be (positive|non-negative)",
        "refused by some releases of torch",
    ),
    Known(".*", "^result 0", "elements that share memory: which is written last", case=r"^\w+_\(\w+\[[^]]*\]:expanded"),
    Known(".*", "only torch fails.*refers? to a single memory location", "torch refuses to write what shares memory"),
    Known("gcd|lcm", "result", "the smallest integer has no absolute value", case="extreme|far|special"),
    Known(
        "polygamma", r"torch \[-?\d{13,}|e\+\d\d", "next to a pole: as large as the sine of a multiple of pi is small"
    ),
    Known("polygamma", "result", "n! beyond the dtype's range, times what is below it", case="float16|n=(17|100)"),
    Known("pow", "only torch fails.*negative integer powers", "torch refuses these of Python numbers, not of tensors"),
    Known("searchsorted", "^result 0", "where a value belongs in a row that is not sorted", case=r"\bunsorted\]"),
    Known("multinomial", "^result 0", "weights below 0 or NaN: their sums are not sorted", case=r"^(?!.*:positive)"),
    Known(
        "sum|mean|var|std|logsumexp|(log_)?softmax_backward",
        "^result 0",
        "sums overflow or cancel in another order",
        case=":extreme",
    ),
    Known(
        "prod|prod_others|cumprod_backward", r"\b(nan|inf)\b", "partial products overflow or vanish in another order"
    ),
    Known("fft_.*", "^result 0", "large numbers cancel", case=":(far|extreme)"),
    Known("det|slogdet", "^result", "NaN, or products that overflow, on the diagonal", case=":(special|extreme)"),
    Known("matmul|addmm|baddbmm|linear.*", "^result 0", "sums overflow or cancel", case=r":extreme|1e\+30|inf\)"),
    Known("qr|inv|solve|solve_triangular|svd|eigh", "^result", "products overflow", case=":(special|extreme)"),
    Known(
        "qr", "^result", "columns that depend on each other: phases that rounding decides", case="complex.*:expanded"
    ),
    Known("geqrf", "^result", "overflow, or the rounding of columns that depend on each other", case=":|refilled"),
    Known("matrix_exp", "^result", "a large norm multiplies rounding errors; torch computes in the matrix's dtype"),
    Known("inv|solve", "[Ss]ingular", "a pivot vanishes by rounding, or does not", case=":extreme|refilled"),
    Known("(log_)?softmax.*", "^result 0", "rounded in a narrower dtype than the operand's", case="dtype='float"),
    Known("put_view", "only numpy.*does not fit into float16", "torch refuses such a number, but not in a 0-d view"),
    Known(
        "put_view|masked_put|index_put|copy",
        "^result 0",
        "floats outside the range of integers, cast to them",
        case=r"\((uint8|int\d+)\[.*?, float.*:(far|extreme|special)|\(uint8\[.*?, float",
    ),
    Known(
        "(elu|hardtanh|hardswish|hardshrink|softshrink)_backward",
        r"^result 0: ",
        "the gradient at NaN: torch's vector loop and its loop for the rest give different ones",
        case=":special",
    ),
    Known(
        "gelu",
        r"^result 0: torch \[-?inf",
        "the product of torch's formula overflows one step earlier at the end of the range",
        case=":extreme.*tanh",
    ),
    Known(
        "gelu_backward",
        "^result 0",
        "a slope near 0 is what is left of a difference: its rounding times a large gradient",
        case=r"\(float32\[[^]]*\]:(extreme|special|far)",
    ),
    Known(
        "softplus_backward",
        r"^result 0: torch \[-?inf",
        "torch multiplies before it divides: a gradient at the end of the range overflows",
        case=r"\(float\d+\[[^]]*\]:extreme",
    ),
    Known(
        "softplus(_backward)?",
        r"^result 0: torch \[(nan|inf)",
        "torch's exponential is infinite above 88, which only an infinite threshold lets through",
        case=r"threshold=(inf|1e\+30)",
    ),
    Known(
        "(layer|group|batch)_norm(_tracked)?",
        r"^result [12]: ",
        "on a CPU torch rounds the statistics of float16 to float16",
        case=r"\(float16",
    ),
    Known(
        "(layer|rms|group|batch)_norm.*",
        r"^result ",
        "infinities meet in another order: x * a + b in torch, (x - mean) * rstd in numpy",
        case=":(special|extreme)",
    ),
    Known(
        "(layer|rms|group|batch)_norm(_backward|_tracked|_inference)?",
        r"^result [01]: ",
        "equal values, or large factors: the rounding of x * rstd - mean * rstd, with rstd up to 1 / sqrt(eps)",
        case=r":far|:zero|group_norm_?\(float32\[\d+, \d+(, 1)*\]",
    ),
    Known(
        "convolution.*|interpolate.*",
        r"^result ",
        "sums of products at the end of the range overflow, or infinities meet, in another order",
        case=":(special|extreme)",
    ),
    Known(
        "(adaptive_)?avg_pool.*",
        r"^result 0: ",
        "numpy sums one dim after the other: what cancels or overflows at the end of the range is another pair",
        case=":(far|extreme)",
    ),
    Known(
        "binary_cross_entropy_backward",
        r"^result 0: torch \[-?(nan|inf)",
        "torch's least divisor, 1e-12, is 0 in float16",
        case=r"\(float16",
    ),
    Known(
        "binary_cross_entropy_backward",
        r"^result 0: .*(nan|inf)",
        "an input far from 0 to 1: (1 - x) * x overflows, and torch multiplies before it divides",
        case=":(special|extreme)",
    ),
    Known(
        "(soft_margin|mse)_loss(_backward)?|binary_cross_entropy|sigmoid_backward",
        r"^result 0: torch \[-?(nan|inf)",
        "torch computes these in float16 itself, and exponentials, sums or products overflow",
        case=r"\(float16",
    ),
    Known(
        "attention(_backward)?",
        r"^result [012]: ",
        "torch's CPU kernels take exponentials of 20 bits; scores and logarithms out of all proportion show it",
        case=":(special|extreme|far|index)",
    ),
    Known(
        "power_sums|vector_norm",
        r"^result ",
        "torch takes a root and then its power: of such an order all is 0, 1 or infinite",
        case=r"ord=-?1e(-30|\+30|\+308)|:extreme",
    ),
    Known(
        "clamp_many|amp_unscale",
        "only torch fails: .*value cannot be converted to type (float|c10::Half) without overflow",
        "torch refuses a number beyond the range of the dtype",
    ),
    Known(
        "attention",
        r"^result [01]: torch \[nan",
        "torch multiplies by the scale after it has masked: minus infinity times 0, or times a negative number",
        case=r"is_causal=True, scale=(0\.0|-)",
    ),
    Known(
        "attention_backward",
        r"^result [012]: ",
        "logarithms that are not those of the scores: weights far above 1, and differences of large numbers",
        case=r"\[.*(attribute_changed|resized)",
    ),
    Known(
        ".*_step",
        r"^result |value cannot be converted to type \S+ without overflow",
        "a rate or a factor out of all proportion: overflow in another order, or before it is used",
        case=r", -?(9223372036854775807|9223372036854775808|18446744073709551615|1e[-+]30|1e\+308)",
    ),
    Known(
        "nll_loss",
        r"^result 0: ",
        "torch rounds each loss of float16 before they are added up in float32",
        case=r"\(float16.*:(far|extreme).*reduction='sum'",
    ),
    Known(
        "binary_cross_entropy_with_logits",
        r"^result 0: ",
        "torch has no kernel for it: each step of its formula is rounded to float16",
        case=r"\(float16",
    ),
    Known(
        "interpolate.*",
        r"^result 0: ",
        "torch computes positions in float32: their rounding times long distances, or large numbers that cancel",
        case=r":far|float32\[.*\b(33|100)\b",
    ),
    Known(
        "adagrad_step",
        r"^result 0: ",
        "the rounding of a gradient that cancels its decay, divided by a deviation of nearly 0",
        case=":extreme",
    ),
    Known(
        "(group|batch)_norm(_tracked)?",
        r"^result 0: torch \[-?\d\.\d+e-0[5-9].* numpy \[-?0\.0",
        "equal values: the rounding of x * rstd - mean * rstd",
    ),
    Known(
        "batch_norm_tracked",
        r"^result [34]: .*(nan|inf)",
        "a momentum out of all proportion: infinities of both signs meet, or not",
        case=r", -?1e\+30(8)?,",
    ),
    Known("attention", r"^result 1: ", "torch's kernel for float16 rounds scores to float16", case=r"\(float16"),
    Known(
        "sinh|cosh",
        r"^result 0: torch \[inf",
        "between 88.7 and 89.4 torch's exponential overflows",
        case=":(special|index)",
    ),
    Known(
        "mse_loss_backward",
        r"^result 0: .*\binf\b",
        "the mean's divisor comes before the product with the difference in torch, after it in numpy",
        case=":extreme",
    ),
    Known("cholesky", r"^result 0: .*e-0[6-9]", "a pivot that is rounding: its root", case=":index"),
    Known(
        "clamp",
        r"^result 0: .*numpy \[nan",
        "a limit of NaN is overlooked by torch's loops for some machines",
        case="nan",
    ),
    Known("lerp", r"^result 0: .*numpy \[nan", "a weight beyond the range", case=r"\(float16.*, -?\d{19}|1e\+30"),
    Known("scatter_add", r"^result 0: ", "halves are added up in another order", case=r"\(float16.*:(far|extreme)"),
    Known("elu_backward", r"^result 0: ", "a factor out of all proportion: 0 times infinity", case=r"=1e\+30"),
    Known("binary_cross_entropy", r"^result 0: ", "torch adds up halves as halves", case=r"\(float16.*:extreme.*'sum'"),
    Known("b?addb?mm", r"^result 0: .*nan", "a product times 0: left out by some libraries", case=r", -?0(\.0)?\) "),
    Known("b?addb?mm", "only numpy fails.*does not fit", "torch takes any number where nothing is computed"),
    Known(
        "logit", "^result 0", "torch's vector loop takes a limit of NaN, its loop for the rest does not", case="eps=nan"
    ),
    Known("lerp", "^result 0", "a difference beyond the range", case=":extreme"),
    Known("mul", "^result 0: .*nan", "0 times a number beyond the range of halves", case=r"\(float16.*, -?\d{19}"),
    Known("batch_norm.*", "^result 0: .*nan", "no variance, and eps is 0: 0 times infinity", case=r"eps=-?0\.0"),
    Known(
        "to|(cum)?(sum|prod)",
        "^result 0",
        "floats outside the range of integers, cast to them",
        case=r"\(float.*'u?int",
    ),
    Known("glu_backward", r"^result 0: ", "torch rounds each step of its formula", case=r"\(float16.*:(far|extreme)"),
    Known("convolution", r"^result 0: ", "torch's kernel for float16 adds up in float16", case=r"\(float16"),
    Known(
        "adam_step",
        r"^result 0: ",
        "torch holds the step in float32: a fraction is rounded",
        case=r"float64.*recounted",
    ),
]


#: Results of cancellation, and how far they may differ, as a share of the largest element.
CANCELLING = {
    "(layer|group|batch|rms)_norm_backward|gelu_backward": 1e-4,
    "cumprod_backward|attention_backward": 1e-3,
    "fft_.*": 1e-5,
}


def known(op: str, case: str, report: str) -> bool:
    return report.startswith(EXCUSABLE) and any(
        re.fullmatch(k.op, op) and re.search(k.report, report) and re.search(k.case, case) for k in KNOWN
    )
