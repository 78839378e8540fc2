//! The launches that the ops should have, derived once more, and the least traffic.

use metal_sim::{Report, Traffic};

use super::host::Launch;
use super::op::{Case, Op};

/// Kernel, grid, group and bytes of scratch.
pub type Shape = (String, [u64; 3], [u64; 3], usize);

pub fn of(launch: &Launch) -> Shape {
    let bytes = launch.threadgroup.first().map_or(0, |(_, bytes)| *bytes);
    (launch.kernel.clone(), launch.grid, launch.group, bytes)
}

pub fn expected(case: &Case) -> Shape {
    let dtype = case.dtype.name();
    let limit = u64::from(case.limit);
    if let Op::Rope { interleaved, freqs, .. } = case.op {
        let mut left = limit.min(256);
        let (mut grid, mut group) = ([0; 3], [0; 3]);
        for (i, count) in threads(case).into_iter().enumerate() {
            grid[i] = count.div_ceil(left);
            group[i] = count.div_ceil(grid[i]);
            left /= group[i];
        }
        let order = if interleaved { "interleaved" } else { "half" };
        let source = if freqs { "freqs" } else { "base" };
        let heads = if one_head(case) { "_one_head" } else { "" };
        return (format!("mlxp_rope_{order}_{source}{heads}_{dtype}"), grid, group, 0);
    }
    let (rows, axis) = (case.shape[0] as u64, case.shape[1] as u64);
    let (infix, slots) = match case.op {
        Op::RmsNorm { weighted: true } => ("_weighted", 1),
        Op::RmsNorm { weighted: false } => ("", 1),
        _ => ("", 2),
    };
    let most = limit.min(1024) / 32 * 32;
    let threads = axis.div_ceil(4).next_multiple_of(32);
    let (form, grid, group) = if axis <= 128 {
        let together = rows.min(8).min(most / 32);
        ("simd", rows.div_ceil(together), together * 32)
    } else {
        let form = match threads.div_ceil(most) {
            1 => "row",
            2 => "row2",
            3 | 4 => "row4",
            _ => "looped",
        };
        (form, rows, threads.min(most))
    };
    let bytes = if form == "simd" { 0 } else { (slots * group as usize / 8).next_multiple_of(16) };
    let kernel = format!("mlxp_{}_{form}{infix}_{dtype}", case.file());
    (kernel, [grid, 1, 1], [group, 1, 1], bytes)
}

fn one_head(case: &Case) -> bool {
    case.shape[2] == 1 || case.shape[1] == 1
}

/// Threads of a rope along each axis of the grid.
fn threads(case: &Case) -> [u64; 3] {
    let Op::Rope { dims, .. } = case.op else { return [0; 3] };
    let [batch, heads, length, features] = case.shape[..] else { return [0; 3] };
    let rest = if case.in_place { 0 } else { (features - dims).div_ceil(2) };
    let depth = batch * heads.div_ceil(if one_head(case) { 1 } else { 4 });
    [dims / 2 + rest, length, depth].map(|count| count as u64)
}

/// Whether the traffic is the least that there can be, and barriers and SIMD operations as meant.
pub fn budget(case: &Case, launch: &Launch, report: &Report) -> Result<(), String> {
    let size = case.dtype.size() as u64;
    let count = case.count() as u64;
    let axis = case.shape[case.shape.len() - 1] as u64;
    let traffic = |id: usize| {
        let mut all = Traffic::default();
        for (index, _) in launch.arrays.iter().filter(|(_, array)| *array == id) {
            let one = report.buffers.get(index).copied().unwrap_or_default();
            all.loads += one.loads;
            all.stores += one.stores;
            all.read_bytes += one.read_bytes;
            all.written_bytes += one.written_bytes;
        }
        all
    };
    let (x, second, third, out) = (traffic(0), traffic(1), traffic(2), traffic(super::host::OUT));
    let same = |what: &str, got: u64, ideal: u64| match got == ideal {
        true => Ok(()),
        false => Err(format!("{what}: {got}, not {ideal}")),
    };
    if let Op::Rope { dims, interleaved, freqs, .. } = case.op {
        let pairs = dims as u64 / 2;
        let [_, length, depth] = threads(case);
        let touched = if case.in_place { count / axis * 2 * pairs } else { count };
        let turns = 4 * pairs * length * depth;
        same("bytes of x", x.read_bytes, touched * size)?;
        same("bytes of out", out.written_bytes, touched * size)?;
        same("bytes of offset", second.read_bytes, turns)?;
        same("bytes of freqs", third.read_bytes, if freqs { turns } else { 0 })?;
        if interleaved && dims as u64 == axis {
            same("loads of x", x.loads, count / 2)?;
            same("stores of out", out.stores, count / 2)?;
        }
        same("barriers", report.threadgroup_barriers, 0)?;
        return same("SIMD operations", report.simd_operations, 0);
    }
    let form = |name: &str| launch.kernel.contains(name);
    let passes = if form("looped") { 2 } else { 1 };
    let weight = if case.op == (Op::RmsNorm { weighted: true }) { count } else { 0 };
    same("bytes of x", x.read_bytes, passes * count * size)?;
    same("bytes of weight", second.read_bytes, weight * size)?;
    same("bytes of out", out.written_bytes, count * size)?;
    if axis.is_multiple_of(4) {
        same("loads of x", x.loads, passes * count / 4)?;
        same("loads of weight", second.loads, weight / 4)?;
        same("stores of out", out.stores, count / 4)?;
    }
    // Of a row, with n SIMD groups.
    let n = launch.group[0] / 32;
    let (barriers, operations) = match case.op {
        Op::Softmax if form("_simd_") => (0, 2),
        Op::Softmax if form("looped") => (1, 4 * n),
        Op::Softmax if form("_row_") => (4, 2 * n + 2),
        Op::Softmax => (2, 4 * n),
        _ if form("_simd_") => (0, 1),
        _ => (2, n + 1),
    };
    let rows = count / axis;
    same("barriers", report.threadgroup_barriers, barriers * rows)?;
    same("SIMD operations", report.simd_operations, operations * rows)
}
