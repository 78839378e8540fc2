//! Mutants that change nothing that a launch can show, each with the reason.

use super::mutate::Mutant;

/// Function, part of the line as it was, part of the line as it became, part of the names of
/// the kernels that are not changed ("" for all, "!" for those without it), and why.
pub type Equivalent = (&'static str, &'static str, &'static str, &'static str, &'static str);

pub const EQUIVALENTS: &[Equivalent] = &[
    ("store4", "i < READS", "i + 1 < READS", "", "the fourth is past the end, or the quad whole"),
    ("scaled", "WEIGHTED ?", "true ?", "weighted", "true there"),
    ("scaled", "WEIGHTED ?", "false ?", "!weighted", "false there"),
    ("rms_norm", "if (WEIGHTED)", "if (true)", "weighted", "true there"),
    ("rms_norm", "if (WEIGHTED)", "if (true)", "!weighted", "what is loaded is never used"),
    ("rms_norm", "if (WEIGHTED)", "if (false)", "!weighted", "false there"),
    ("rms_norm", "= load4(weight", "T(1.0f)", "", "weights past the end are never stored"),
    ("rms_norm_looped", "values = load4(x", "T(1.0f)", "", "only what is stored is used"),
    ("rms_norm_looped", "at < params.axis", "at <= params.axis", "", "a quad of nothing but pad"),
    ("softmax_looped", "at < params.axis", "at <= params.axis", "", "a quad of nothing but pad"),
    ("softmax_row", "QUADS == 1", "if (true)", "softmax_row_", "true there"),
    ("softmax_row", "QUADS == 1", "if (false)", "softmax_row2", "false there"),
    ("softmax_row", "QUADS == 1", "if (false)", "softmax_row4", "false there"),
    ("softmax_row", "group_sum(sum", "", "softmax_row2", "not called there"),
    ("softmax_row", "group_sum(sum", "", "softmax_row4", "not called there"),
    ("softmax_row", "group_sum_at_once(sum", "", "softmax_row_", "not called there"),
    ("larger", "a < b", "a <= b", "", "equal numbers"),
    ("larger", "a < b", "a + 1 < b", "", "softmax is the same for any maximum that is near enough"),
    ("softmax_looped", "grown > maximum", "grown >= maximum", "", "the factor is exp(0) = 1"),
    ("softmax_looped", "grown > maximum", "if (true)", "", "grown is never below the maximum"),
    ("softmax_looped", "exp4(0.0f", "exp4(1.0f", "", "the second sum is not used"),
    ("load_pair", "INTERLEAVED", "true", "interleaved", "true there"),
    ("load_pair", "INTERLEAVED", "false", "half", "false there"),
    ("store_pair", "INTERLEAVED", "true", "interleaved", "true there"),
    ("store_pair", "INTERLEAVED", "false", "half", "false there"),
    ("inverse_frequency", "EXPLICIT ? 1.0f", "EXPLICIT ? 2.0f", "base", "the other arm is taken"),
    ("inverse_frequency", "EXPLICIT ?", "true ?", "freqs", "true there"),
    ("inverse_frequency", "EXPLICIT ?", "false ?", "base", "false there"),
    ("rope", "h < heads", "h <= heads", "one_head", "HEADS and heads are 1"),
    ("rope", "h < heads", "if (true)", "one_head", "HEADS and heads are 1"),
    ("grid_count", "count > ", "count >= ", "host", "takes 2^32 - 1 rows to reach"),
];

/// Whether `mutant` is known to leave `kernel` as it is.
pub fn known(mutant: &Mutant, kernel: &str) -> Option<usize> {
    let named = |kernels: &str| match kernels.strip_prefix('!') {
        Some(kernels) => !kernel.contains(kernels),
        None => kernel.contains(kernels),
    };
    EQUIVALENTS.iter().position(|(function, from, to, kernels, _)| {
        mutant.function.starts_with(function)
            && mutant.from.contains(from)
            && mutant.to.contains(to)
            && named(kernels)
    })
}
