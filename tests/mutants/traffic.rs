//! Checks that the kernels of softmax and RMSNorm have the least possible memory traffic and the
//! least possible number of barriers.

use mlx_primitives::Dispatched;

/// The least number of barriers, and of exchanges between lanes, for a row. `simds` is the number
/// of SIMD groups in the threadgroup.
fn synchronization(kernel: &str, simds: u64) -> Option<[u64; 2]> {
    let form = kernel.strip_prefix("mlxp_softmax_").map(|form| (form, true));
    let form = form.or_else(|| Some((kernel.strip_prefix("mlxp_rms_norm_")?, false)));
    Some(match form? {
        (form, true) if form.starts_with("simd_") => [0, 2],
        (form, true) if form.starts_with("looped_") => [1, 4 * simds],
        // The kernel shares the maximum among its SIMD groups in two steps, and then the sum in two
        // steps.
        (form, true) if form.starts_with("row_") => [4, 2 * simds + 2],
        (_, true) => [2, 4 * simds],
        (form, false) if form.starts_with("simd_") => [0, 1],
        (_, false) => [2, simds + 1],
    })
}

/// Checks that softmax and RMSNorm read each byte of x once, or twice if rows do not fit in
/// registers. They must write each byte once, read the weight once for each row, and use the least
/// number of barriers and of exchanges. Returns false for other kernels.
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
