"""The cases of the table of kernel costs (see table.py): uses of kernels in a Llama. Each case
compares a kernel of metal/ with MLX's kernels for the same work.

A case counts cycles for a unit of work, in the part of the code in which a kernel spends its time.
`per`, `trips` and the other numbers depend on how the kernel divides its work, so change them
together with the kernel.
"""

from dataclasses import dataclass, field

DTYPES = ("float32", "float16", "bfloat16")
NAMED = (*DTYPES, "uint32")  # the suffixes of the names of kernels
AXIS = 4096  # the columns in products of few rows


@dataclass
class Side:
    """One kernel of a case, and the part of its code to count."""

    kernel: str
    per: float = 1  # the units of work in the counted code
    # The main loop is the loop with the most floating-point instructions. "loop" counts one
    # iteration of the main loop; each loop inside it runs `trips` times. "once" counts the code
    # outside loops, and `trips` iterations of the main loop. For "whole", the main loop is chosen
    # among the innermost loops; "whole" counts the code outside loops, `trips` iterations of the
    # main loop, `rounds` iterations of the loops around it, and `staging` iterations of each other
    # loop. "all" counts all code with both sides of branches, for kernels in which no rule finds
    # the path that runs.
    count: str = "loop"
    trips: float = 0
    rounds: float = 1
    staging: float = 0
    group: int = 0  # the threads of a threadgroup at launch, or 0 if they do not matter
    source: str = ""  # for MLX: the file in this folder with a kernel that no library has
    # For kernels of metal/: the parameters that select a path through the kernel. They are fields
    # of a struct in metal/.
    struct: str = ""
    values: dict = field(default_factory=dict)
    constants: dict = field(default_factory=dict)  # for MLX: function constants


@dataclass
class Case:
    name: str
    unit: str
    ours: Side
    theirs: tuple = ()  # the kernels of MLX that together do the same work
    least: float = 0  # the minimum of floating-point instructions of a unit, to check `per`


def rows(t):
    """Norms and softmax over rows of 4096 elements."""
    affine = {"weighted": 1, "biased": 1}
    element = lambda kernel, struct, values={}: Side(kernel, 4, "once", struct=struct, values=values)
    theirs = lambda kernel, per: Side(f"{kernel}{t}", per, "once", constants={20: 1}, group=4096 // per)
    add = Side(f"vvn_Add{t}", 2 if t == "float32" else 4, "once")
    gradient = lambda kind: Side(
        f"mlxp_norm_grad_{kind}_row2_{t}", 8, "once", struct="NormGradParams", values={"weighted": 1, "added": 0}
    )
    return [
        Case(
            "rms_norm row",
            "element",
            element(f"mlxp_rms_norm_row_weighted_{t}", "RmsNormParams"),
            (theirs("rms", 4),),
        ),
        Case(
            "layer_norm row",
            "element",
            Side(f"mlxp_layer_norm_row2_{t}", 8, "once", struct="LayerNormParams", values=affine),
            (theirs("layer_norm", 8),),
        ),
        Case(
            "residual_norm row",
            "element",
            element(f"mlxp_residual_norm_row_rms_{t}", "ResidualNormParams", affine),
            (add, theirs("rms", 4)),
        ),
        Case(
            "softmax row",
            "element",
            element(f"mlxp_softmax_row_{t}", "SoftmaxParams"),
            (theirs("block_softmax_", 4),),
        ),
        Case("logsumexp row", "element", element(f"mlxp_logsumexp_row_subtracted_{t}", "LogSumExpParams")),
        Case("rms_norm row, gradient", "element", gradient("rms"), (theirs("vjp_rms", 4),)),
        Case("layer_norm row, gradient", "element", gradient("layer"), (theirs("vjp_layer_norm", 8),)),
    ]


def quantized(t):
    """Products with quantized weights, in groups of 64 or of the mode's group size: first for one
    to eight rows of x, then a step of depth 32 of a tile."""
    mlx = {"float32": "float", "float16": "float16_t", "bfloat16": "bfloat16_t"}[t]
    plain = dict(parts=1, swiglu=0, normed=0, biased=0, added=0)
    cases = []
    formats = [(f"{bits} bits", f"b{bits}", "affine", 64, bits) for bits in (3, 4, 5, 6, 8)]
    formats += [(mode,) * 3 + of for mode, of in dict(mxfp4=(32, 4), mxfp8=(32, 8), nvfp4=(16, 4)).items()]
    if t == "float32":  # our K-quant kernels take float32 only; MLX has no K-quants
        formats += [(f"k_quant {bits} bits", f"k{bits}", "", group, bits) for bits, group in ((4, 32), (5, 32), (6, 16))]
    for name, suffix, mode, group, bits in formats:
        name = f"quantized {name}"
        plain["group_shift"] = group.bit_length() - 1
        of = f"{mlx}_gs_{group}_b_{bits}"
        fast = 8 if bits in (6, 8) else 16
        for count in (1, 2, 4, 8) if suffix == "b4" else (1, 8):
            form = "row" if count == 1 else f"band{count}"
            # Rows have AXIS columns, and threadgroups have 256 threads. A SIMD group processes 512
            # columns in an iteration. The kernel copies x in stages of 16 KB to threadgroup memory,
            # and a thread copies 16 values at a time. For one row of a 16-bit type, the first copy
            # is outside the loop.
            size = 4 if t == "float32" else 2
            first = count == 1 and size == 2
            ours = Side(
                f"mlxp_quantized_matmul_{form}_{suffix}_{t}",
                AXIS // 32 * (4 if count < 8 else 2) * count,  # the columns of a SIMD group: see quantized_rows in metal/
                "whole",
                AXIS / 512,
                max(1, AXIS * count * size / 16384),
                AXIS * count / 16 / 256 - first,
                struct="QuantizedMatmulParams",
                values=dict(plain),
                group=256,
            )
            if not mode:
                theirs = None
            elif count == 1:
                # In affine mode, the code outside the loops includes code for the remainder of a
                # row. It is counted, although no row of these cases has a remainder, and stands for
                # one iteration. So `turns` is one less than the number of iterations.
                turns = AXIS / (32 * fast) - (mode == "affine")
                kernel = f"{mode}_qmv_fast_{of}_batch_0_pr_0_hgs_0_r_4"
                theirs = Side(kernel, AXIS // 32 * 4, "whole", turns, group=64)
            elif mode == "affine":
                together = min(count, 4)
                kernel = f"affine_qmv_wide_{of}_nv_{together}_kl_8_batch_0"
                theirs = Side(kernel, AXIS // 8 * together, "whole", AXIS / (8 * group), group=64)
            else:
                theirs = None  # MLX's kernel uses vectors, which intrinsics.py does not support
            unit = "weight" if count == 1 else "weight, row"
            cases.append(Case(f"{name}, {count} row{'s' * (count > 1)}", unit, ours, (theirs,) if theirs else (), least=1))
        theirs = (Side(f"{mode}_qmm_t_{of}_alN_true_batch_0", group=128),) if mode else ()
        for form, count in (("tile", 1), ("tall", 2)):
            ours = Side(
                f"mlxp_quantized_matmul_{form}_{suffix}_{t}",
                count,
                struct="QuantizedMatmulParams",
                values=dict(plain),
                group=128,
            )
            cases.append(Case(f"{name}, {form}", "32 x 32 x 32", ours, theirs, least=256))
    return cases


def linear(t):
    """Products with plain weights: first for few rows, then a tile in which a SIMD group computes
    32 x 32 outputs, in steps of depth 16."""
    plain = dict(w_batched=0, biased=0, residual=0, activation=0)
    side = lambda kernel, *of, group: Side(
        f"mlxp_linear_{kernel}_{t}", *of, struct="LinearParams", values=plain, group=group
    )
    # Rows have AXIS columns, and threadgroups have 256 threads. A SIMD group processes 128 columns
    # in an iteration. The kernel copies x in stages of 4096 floats to threadgroup memory, and a
    # thread copies four floats at a time. For one row of a 16-bit type, the first 128 columns are
    # outside the loop.
    few = lambda m: side(
        f"few{m}", AXIS // 32 * 4 * m, "whole", AXIS / 128 - (m == 1 and t != "float32"), AXIS * m / 4096, AXIS * m / 1024, group=256
    )
    # The code outside the loops of MLX's kernel includes code for the remainder of a row. It is
    # counted, although no row of these cases has a remainder, and stands for one iteration. So the
    # number of iterations is reduced by one.
    gemv = Side(f"gemv_{t}_bm8_bn1_sm1_sn32_tm4_tn4_nc0_axpby0", AXIS // 32 * 4, "whole", AXIS / 128 - 1, group=256)
    aligned = {10: 0, 100: 0, 110: 0, 200: 1, 201: 1, 202: 1}
    gemm = Side(f"steel_gemm_fused_nt_{t}_{t}_bm64_bn64_bk16_wm2_wn2", constants=aligned, group=128)
    cases = [Case("linear, 1 row", "weight", few(1), (gemv,), least=1)]
    cases += [Case(f"linear, {m} rows", "weight, row", few(m), least=1) for m in (2, 4, 8)]
    depth = 1 if t == "float32" else 2
    quads = 64 * 16 * depth // 4  # the groups of four elements of a tile, which 128 threads copy
    return cases + [Case("linear, tile", "depth of 16", side("tiled_2x2", depth, "loop", quads / 128, group=128), (gemm,), 512)]


def attention(t):
    """Attention: decoding with 1, 4 and 8 query heads for each key head, then prefill."""
    mlx = {"float32": "float", "float16": "float16_t", "bfloat16": "bfloat16_t"}[t]
    plain = dict(quantized_group=0, window=0, causal=0, mask_kind=0, has_sinks=0, soft_cap=0)
    for view in ("q", "k[0]", "k[1]", "k[2]", "v[0]", "v[1]", "v[2]", "mask"):
        plain[f"{view}.strides[3]"] = 1
    none = {20: 0, 21: 0, 22: 0, 23: 0, 24: 0, 25: 0, 26: 16}
    whole = {200: 1, 201: 1, 300: 0, 301: 0, 302: 0, 303: 0}
    cases = []
    for heads in (1, 4, 8):
        # 32 lanes share a key, and a SIMD group processes 8 keys in an iteration.
        ours = Side(
            f"mlxp_attention_vector_128_{heads}_{t}", 8 * heads, struct="AttentionParams", values=plain, group=256
        )
        gqa = "_gqa_8" if heads == 8 else ""
        theirs = Side(f"sdpa_vector_2pass_1{gqa}_{mlx}_128_128", 4, constants=none, group=32 * heads)
        cases.append(
            Case(
                f"attention, {heads} head{'s' * (heads > 1)} a key head", "key, row", ours, (theirs,), least=8
            )
        )
    for dim in (64, 80, 96, 128, 256):
        row = dim * (4 if t == "float32" else 2)
        keys = 8 if row > 512 else 16 if row > 384 else 32
        values = {**plain, "dim": dim, "splits": 1}
        ours = Side(f"mlxp_attention_matrix_{dim}_{t}", keys, trips=1, struct="AttentionParams", values=values, group=128)
        # In MLX's kernel for 256 features, two SIMD groups share the features of a row.
        mlx_keys, groups = (16, 2) if dim == 256 else (16, 1) if dim == 128 else (32, 1)
        steel = f"steel_attention_{t}_bq32_bk{mlx_keys}_bd{dim}_bv{dim}_wm4_wn{groups}_maskbool_"
        cases.append(
            Case(
                f"attention, prefill, {dim} features",
                "key, 8 rows",
                ours,
                (Side(steel, mlx_keys / groups, constants=whole, group=128 * groups),),
                least=dim / 2,
            )
        )
    return cases


def the_rest(t):
    along = {1: 1, 2: 0, 3: 0, 4: 0}
    each = 2 if t == "float32" else 4
    compiled = Side(f"compiled_swiglu_{t}", each, "once", each, source="compiled_swiglu.metal")
    return [
        Case(
            "rope, one position",
            "pair",
            Side(
                f"mlxp_rope_half_base_one_head_{t}",
                1,
                "once",
                struct="RopeParams",
                values=dict(offset_stride=0),
            ),
            (Side(f"rope_single_{t}", 1, "once", constants=along),),
        ),
        Case(
            "rope, many positions",
            "pair",
            Side(f"mlxp_rope_half_base_{t}", 4, "once"),
            (Side(f"rope_{t}", 4, "once", 4, constants=along),),
        ),
        Case("rope_append", "thread", Side(f"mlxp_rope_append_half_base_{t}", count="all")),
        Case(
            "swiglu", "element", Side(f"mlxp_activation_swiglu_{t}", 4, "once"), (compiled,)
        ),
        Case("gelu", "element", Side(f"mlxp_activation_gelu_{t}", 4, "once")),
        Case("lora, 8 rows", "rank, row", Side(f"mlxp_lora_correct_{t}", 8), least=1),
    ]


def cases(t):
    return rows(t) + quantized(t) + linear(t) + attention(t) + the_rest(t)
