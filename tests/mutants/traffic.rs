//! Compares the traffic and the barriers of the row kernels with the least possible numbers.

use mlx_primitives::Dispatched;

/// The barriers and the exchanges between lanes for a row, in a threadgroup of this many SIMD
/// groups.
fn synchronization(kernel: &str, simds: u64) -> Option<[u64; 2]> {
    let form = kernel.strip_prefix("mlxp_softmax_").map(|form| (form, true));
    let form = form.or_else(|| Some((kernel.strip_prefix("mlxp_rms_norm_")?, false)));
    Some(match form? {
        (form, true) if form.starts_with("simd_") => [0, 2],
        (form, true) if form.starts_with("looped_") => [1, 4 * simds],
        // The maximum and the sum are each shared in two steps.
        (form, true) if form.starts_with("row_") => [4, 2 * simds + 2],
        (_, true) => [2, 4 * simds],
        (form, false) if form.starts_with("simd_") => [0, 1],
        (_, false) => [2, simds + 1],
    })
}

/// Whether softmax and RMSNorm read each byte of x once, or twice if rows are too long for
/// registers, write each byte once, and have no more barriers than necessary.
pub fn is_least(dispatched: &Dispatched) -> Result<bool, String> {
    let Dispatched { kernel, arrays, report, encoded } = dispatched;
    let Some([barriers, exchanges]) = synchronization(kernel, u64::from(encoded.group[0] / 32))
    else {
        return Ok(false);
    };
    let passes = if kernel.contains("_looped_") { 2 } else { 1 };
    let rows = u64::from(encoded.parameters[0].1[0]);
    let bytes = encoded.arrays[0].1 as u64;
    let (read, written) = (arrays[0][0], arrays[arrays.len() - 1][1]);
    let weight = if kernel.contains("_weighted_") { bytes } else { 0 };
    let of_weight = if arrays.len() == 3 { arrays[1][0] } else { 0 };
    let did = [read, written, of_weight, report.threadgroup_barriers, report.simd_operations];
    let least = [passes * bytes, bytes, weight, barriers * rows, exchanges * rows];
    match did == least {
        true => Ok(true),
        false => Err(format!("{kernel} over {rows} rows: {did:?} in place of {least:?}")),
    }
}
