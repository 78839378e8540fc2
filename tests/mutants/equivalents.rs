//! Equivalent mutants: faults that change nothing, so that no check can detect them. Each has a
//! reason.

use crate::mutate::Mutant;

/// The beginning of a function's name, a part of the original line, a part of the changed line, and
/// the reason. An empty text matches everything.
pub type Equivalent = (&'static str, &'static str, &'static str, &'static str);

pub const KERNELS: &[Equivalent] = &[
    ("store4", "i < READS", "i + 1 < READS", "the fourth is past the end, or the quad whole"),
    ("", "return load4(x, at, axis", "T(1.0f)", "only what is stored is used"),
    ("add_deviations", "WHOLE_QUADS &&", "", "only CUDA has rows of whole quads"),
    ("add_deviations", "WHOLE_QUADS ||", "= false ||", "only CUDA has rows of whole quads"),
    ("normalized", "CENTERED ?", "(true ?", "the mean of what is not centered is 0"),
    ("load_affine", "= load4(", "T(1.0f)", "weights past the end are never stored"),
    ("normalize", "if (early)", "if (true)", "only CUDA loads weights late"),
    ("normalize", "if (!early)", "if (false)", "only CUDA loads weights late"),
    ("normalize", "float mean = 0.0f", "1.0f", "the mean of what is not centered is not used"),
    ("normalize", "Moments seen", "{0.0f, 1.0f", "the mean of no elements is not used"),
    ("add_quad", "at + READS <= axis", "at + READS < axis", "both arms are the same there"),
    ("normalize", "if (!CENTERED)", "", "only CUDA keeps quads packed"),
    ("normalize", "at < params.axis", "at <= params.axis", "a quad of nothing but pad"),
    ("normalize", "at < axis", "at <= axis", "a quad of nothing but pad"),
    ("write_", "at < scores.", "at <= scores.", "a quad of nothing but pad"),
    ("write_", "at < axis", "at <= axis", "a quad of nothing but pad"),
    ("write_", "exp4(0.0f", "exp4(1.0f", "the second sum is not used"),
    (
        "attention_vector",
        "simdgroup_barrier",
        "else queries",
        "for the compiler alone; orders nothing",
    ),
    ("logsumexp_grad", "at < axis", "at <= axis", "a quad of nothing but pad"),
    ("logsumexp_grad", "if (SUBTRACT)", "if (true)", "without SUBTRACT the sum is not used"),
    ("logsumexp_grad", "exp4(0.0f", "exp4(1.0f", "the second sum is not used"),
    ("logsumexp_grad", "= SUBTRACT ? load4(", "T(1.0f)", "only what is stored is used"),
    ("logsumexp_grad", "= SUBTRACT ? load4(", "= true ?", "without SUBTRACT it is not used"),
    (
        "group_stats",
        "at.lane < at.simds",
        "at.lane <= at.simds",
        "those groups have 32 SIMD groups",
    ),
    ("group_stats", "at.lane < at.simds", "if (true)", "those groups have 32 SIMD groups"),
    ("larger", "a < b", "a <= b", "equal numbers"),
    ("larger", "a < b", "a + 1 < b", "softmax is the same for any maximum that is near enough"),
    ("with4", "grown > stats.maximum", "grown >= stats.maximum", "the factor is exp(0) = 1"),
    ("with4", "grown > stats.maximum", "if (true)", "grown is never below the maximum"),
    ("", "x > so_far", "x >= so_far", "equal numbers"),
    ("fold_quads", "at < length", "at <= length", "a quad of nothing but pad"),
    ("reduce_group", "rest < params.piece", "rest <= params.piece", "both arms are the same there"),
    ("", "size_t(threads) * READS", "(READS + 1)", "no thread has a quad that far along"),
    ("activation_", "span.at >= span.end", "span.at > span.end", "a quad of nothing but pad"),
    ("activation_", "span.at >= span.end", "if (false)", "quads of nothing but pad"),
    ("activation_", "= load4(", "T(1.0f)", "only what is stored is used"),
    ("factors", "load4(of", "T(1.0f)", "only what is stored is used"),
    (
        "activation_affine",
        "at >= params.columns",
        "at > params.columns",
        "a quad of nothing but pad",
    ),
    ("activation_affine", "first >= params.rows", "first > params.rows", "a thread without rows"),
    ("lora_correct", "m < LORA_ROWS", "m <= LORA_ROWS", "no group has more than LORA_ROWS rows"),
    ("rope", "offset_stride == 0 ?", "= false ?", "a division more"),
    ("rope_append", "Turn by =", "Turn by =", "values are not rotated"),
    ("rope_append", "first < turned", "first <= turned", "values are not rotated"),
    ("rope_append_grad", "paired && first <", "first <=", "values are not rotated"),
    ("span_of_heads", "Turn by =", "Turn by =", "features that stay are not rotated"),
    ("rope_append", "h < APPEND_HEADS", "h <= APPEND_HEADS", "no thread has more heads"),
    ("rope_append", "multiplier != 1.0f", "multiplier != 2.0f", "a product with 1"),
    ("rope_append", "multiplier != 1.0f", "if (true)", "a product with 1"),
    ("rope_append_grad", ": 0);", ": 1);", "a row that no position has is not read"),
    ("copy_state", "at.x >= params.row ", "at.x > params.row ", "the grid has whole rows"),
    ("copy_state", "at.x >= params.row ", "(false ||", "the grid has whole rows"),
    ("copy_state", "start >= count", "start > count", "a quad of nothing but pad"),
    ("copy_state", "start >= count", "start + 1 >=", "a state has an even number of elements"),
    ("take_grad_sum", "at >= params.axis", "at > params.axis", "a quad of nothing but pad"),
    ("take_grad_sum", "= load4(", "T(1.0f)", "only what is stored is used"),
];

/// Each entry has a part of the name of a kernel or of its file, a pattern for the description of
/// the change, and the reason. In a pattern, `a..b` matches the numbers in that range. A pattern
/// may also be only the first words of a description.
pub const DISPATCHES: &[(&str, &str, &str)] = &[
    ("activation_add_relu", "swapped 0 1", "a sum is the same in both orders"),
    ("activation_mul_relu", "swapped 0 1", "a product is the same in both orders"),
    ("residual_norm", "swapped 0 1", "the norm is of the sum, which is the same in both orders"),
    ("rms_norm_", "swapped 0 1", "without a weight x stands in for it"),
    ("rope_half_base", "swapped 1 2", "without frequencies the offsets stand in for them"),
    ("rope_interleaved_base", "swapped 1 2", "without frequencies the offsets stand in for them"),
    ("rope_append_interleaved_base", "swapped 2 3", "one array stands in for what is not there"),
    ("rope_append_interleaved_base", "swapped 3 4", "one array stands in for what is not there"),
    (
        "rope_append_grad_interleaved_base",
        "swapped 1 2",
        "one array stands in for what is not there",
    ),
    (
        "rope_append_grad_interleaved_base",
        "swapped 2 3",
        "one array stands in for what is not there",
    ),
    ("rope_append_heads_half_base", "swapped 1 2", "the offsets stand in for frequencies"),
    ("rope_append_heads_interleaved_base", "swapped 1 2", "the offsets stand in for frequencies"),
    ("rope_append_heads_grad_", "swapped 3 4", "the offsets stand in for frequencies"),
    ("quantize", "word 4 2..4", "another dispatch takes rows"),
    ("linear_columns", "swapped 2 3", "these products have neither bias nor residual"),
    ("attention_grad_", "memory 0 -16", "the last staged row ends in padding"),
    ("attention_", "swapped 1 2", "plain keys have no scales"),
    ("attention_", "swapped 2 3", "plain keys have no scales and no biases"),
    ("attention_", "swapped 4 5", "plain values have no scales"),
    ("attention_", "swapped 5 6", "plain values have no scales and no biases"),
    ("attention_matrix_64_float32", "swapped 6 7", "there is neither a bias nor a mask"),
    ("attention_matrix_80_float32", "swapped 6 7", "there is neither a bias nor a mask"),
    ("attention_matrix_96_float32", "swapped 6 7", "there is neither a bias nor a mask"),
    ("attention_matrix_128_float32", "swapped 6 7", "there is neither a bias nor a mask"),
    ("attention_matrix_256_float32", "swapped 6 7", "there is neither a bias nor a mask"),
    ("quantized_matmul_row", "swapped 10 11", "these cases have a bias and a residual only"),
    ("attention_matrix", "memory 0 -16", "the last staged row ends in padding"),
    ("linear_", "memory 0 -16", "rows end in padding, and short rows of x fill no stage"),
    ("quantized_transposed_", "memory 0 -16", "the last staged row ends in padding"),
    ("quantized_matmul_", "memory 0 -16", "short rows of x fill no stage"),
    ("masked_softmax_grad_", "memory 0 -16", "one of the two slots of a SIMD group is used"),
    ("residual_norm_row", "memory 0 -16", "a norm without a mean uses one of two slots"),
    ("residual_norm_looped_rms", "memory 0 -16", "a norm without a mean uses one of two slots"),
    ("masked_softmax", "word 3 16..36", "the masks have no more extents"),
    ("masked_softmax_grad", "word 4 12..36", "the mask of a gradient is in the result"),
    ("attention", "word 3 0..80", "the kernel that combines splits reads no view"),
    ("attention", "word 3 84..86", "the kernel that combines splits reads no keys"),
    ("attention", "word 3 87..90", "the kernel that combines splits reads no keys"),
    ("attention", "word 3 92..96", "the kernel that combines splits reads no rules of keys"),
    ("attention", "word 3 96 1", "any number but 0 is true"),
    ("attention", "word 3 97..99", "the kernel that combines splits reads no scores"),
    ("attention", "word 3 99", "padding"),
    ("attention", "word 10 88 1", "chunks end where the keys end"),
    ("attention", "word 10 91", "only the kernel that combines splits reads it"),
    ("attention", "word 10 99", "padding"),
    ("attention_grad", "word 7 50", "only the gradient of a mask adds up batch entries"),
    ("cross_entropy", "word 4 2 1", "any number but 0 is true"),
    ("cross_entropy", "word 5 2 1", "any number but 0 is true"),
    ("residual_norm", "word 6 4 1", "any number but 0 is true"),
    ("lora", "word 5 3", "a single product has no stride from batch to batch"),
    ("lora", "word 5 6 -1", "any number but 0 is true"),
    ("quantized_matmul", "word 13 12", "x of a tile is normalized before"),
    ("quantized_matmul", "word 13 15", "x of a tile is normalized before"),
    ("quantized_matmul", "word 13 16..18", "only kernels for NVIDIA GPUs read them"),
    ("quantized_matmul", "word 14 16..18", "only kernels for NVIDIA GPUs read them"),
    ("quantized_matmul", "word 13 7", "the first matrix begins at block 0, which nothing reads"),
    ("quantized_matmul", "word 14 7", "the first matrix begins at block 0, which nothing reads"),
    ("logsumexp", "word 3 0", "a threadgroup has one row of a gradient"),
    ("reduce", "word 2 7", "padding"),
    ("rope_append", "word 2 2", "the copies are of one row of the grid"),
];

/// The index of the entry that matches this mutant of a kernel, if there is one.
pub fn of_kernel(mutant: &Mutant) -> Option<usize> {
    KERNELS.iter().position(|(function, from, to, _)| {
        mutant.function.starts_with(function)
            && mutant.from.contains(from)
            && mutant.to.contains(to)
    })
}

/// The index of the entry that matches this change of a dispatch, if there is one.
pub fn of_dispatch(of: &str, change: &str) -> Option<usize> {
    DISPATCHES
        .iter()
        .position(|(part, pattern, _)| of.contains(part) && stands_for(pattern, change))
}

fn stands_for(pattern: &str, change: &str) -> bool {
    let mut words = change.split(' ');
    pattern.split(' ').all(|expected| match (expected.split_once(".."), words.next()) {
        (Some((first, end)), Some(word)) => {
            let number = |text: &str| text.parse::<usize>().unwrap_or(usize::MAX);
            (number(first)..number(end)).contains(&number(word))
        }
        (None, Some(word)) => word == expected,
        (_, None) => false,
    })
}
