//! Compares MLX's kernels, as Apple compiled them, with the kernels of `mlx-primitives` on the same
//! inputs. The compared counts are bytes, loads, barriers, SIMD operations and threadgroup memory.
//! The test prints a table, which `scripts/calibrate.sh --table` shows.

use std::fmt::Write;

use metal_sim::{Constants, Kernel, Report, Schedule};

use crate::launch::{self, Dtype, Launch, RopeShape};
use crate::{apple_kernels, ours, result};

/// The counts of one dispatch. Parameter buffers do not count, since a GPU holds them in registers.
#[derive(Clone, Copy)]
struct Counts {
    read: u64,
    written: u64,
    loads: u64,
    barriers: u64,
    simd_operations: u64,
    threadgroup_bytes: u64,
    threadgroup_loads: u64,
}

impl Counts {
    fn new(launch: &Launch, report: &Report) -> Self {
        let sum = |count: fn(&metal_sim::Traffic) -> u64| -> u64 {
            launch.tensors.iter().map(|index| count(&report.buffers[index])).sum()
        };
        Counts {
            read: sum(|traffic| traffic.read_bytes),
            written: sum(|traffic| traffic.written_bytes),
            loads: sum(|traffic| traffic.loads),
            barriers: report.threadgroup_barriers,
            simd_operations: report.simd_operations,
            threadgroup_bytes: report.threadgroup_bytes,
            threadgroup_loads: report.threadgroup.loads,
        }
    }

    fn bytes(&self) -> u64 {
        self.read + self.written
    }
}

/// One op at one shape.
struct Case {
    op: &'static str,
    shape: String,
    dtype: Dtype,
    ours: Launch,
    mlx: Launch,
    ideal: (u64, u64),
    /// Whether the row fits into a threadgroup's registers, so that one read is enough.
    once: bool,
}

const ROWS: [(usize, usize); 6] = [(8, 64), (8, 128), (4, 1024), (2, 4096), (2, 8192), (1, 16384)];
const LOOPED: (usize, usize) = (1, 32768);
const UNALIGNED: (usize, usize) = (3, 1001);
const ROPES: [[usize; 4]; 4] = [[1, 8, 1, 128], [1, 32, 1, 64], [1, 8, 16, 64], [2, 6, 5, 128]];

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in Dtype::ALL {
        let size = dtype.size() as u64;
        for (rows, axis) in ROWS.into_iter().chain([LOOPED, UNALIGNED]) {
            let shape = format!("{rows} x {axis}");
            let bytes = (rows * axis) as u64 * size;
            let once = (rows, axis) != LOOPED;
            let (ours, mlx) =
                (ours::rms_norm(dtype, rows, axis), launch::mlx_rms_norm(dtype, rows, axis));
            let ideal = (2 * bytes, bytes); // the weight is read with every row
            cases.push(Case {
                op: "rms_norm",
                shape: shape.clone(),
                dtype,
                ours,
                mlx,
                ideal,
                once,
            });
            let (ours, mlx) =
                (ours::softmax(dtype, rows, axis), launch::mlx_softmax(dtype, rows, axis));
            cases.push(Case {
                op: "softmax",
                shape,
                dtype,
                ours,
                mlx,
                ideal: (bytes, bytes),
                once,
            });
        }
        for sides in ROPES {
            let shape = sides.map(|side| side.to_string()).join(" x ");
            let bytes = sides.iter().product::<usize>() as u64 * size;
            let (ours, mlx) = (
                ours::rope(dtype, RopeShape(sides), false),
                launch::mlx_rope(dtype, RopeShape(sides)),
            );
            let ideal = (bytes, bytes);
            cases.push(Case { op: "rope", shape, dtype, ours, mlx, ideal, once: true });
        }
    }
    cases
}

fn row(table: &mut String, case: &Case, who: &str, counts: Counts) {
    let Counts { read, written, loads, barriers, simd_operations, .. } = counts;
    let (bytes, threadgroup_loads) = (counts.threadgroup_bytes, counts.threadgroup_loads);
    let (op, dtype, shape) = (case.op, case.dtype.name(), &case.shape);
    let _ = writeln!(
        table,
        "| {op} | {dtype} | {shape} | {who} | {read} | {written} | {loads} | {barriers} | \
         {simd_operations} | {bytes} | {threadgroup_loads} |"
    );
}

#[test]
fn side_by_side() {
    let cases = cases();
    let mut names: Vec<&str> = cases.iter().map(|case| case.mlx.kernel.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let apple = apple_kernels(&names, &ours::rope_constants(false));
    let libraries = ["rms_norm", "softmax", "rope"].map(|op| (op, ours::library(op)));
    let mut table = String::from(
        "| op | dtype | shape | kernel | bytes read | written | loads | barriers | \
         SIMD operations | threadgroup bytes | threadgroup loads |\n\
         |---|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut less = 0;
    for case in &cases {
        let count = |launch: &Launch, kernel: &Kernel| {
            let (out, report) = launch.run(kernel, Schedule::Forward);
            (case.dtype.decode(&out), Counts::new(launch, &report))
        };
        let Some((_, library)) = libraries.iter().find(|(op, _)| *op == case.op) else { continue };
        let kernel = library.kernel(&case.ours.kernel, &Constants::new()).unwrap();
        let (got, ours) = count(&case.ours, &kernel);
        let (expected, mlx) = count(&case.mlx, &apple[&case.mlx.kernel]);
        row(&mut table, case, "ours", ours);
        row(&mut table, case, "MLX", mlx);
        let (read, written) = case.ideal;
        let (op, dtype, shape) = (case.op, case.dtype.name(), &case.shape);
        let _ =
            writeln!(table, "| {op} | {dtype} | {shape} | ideal | {read} | {written} | | | | | |");
        let name = format!("{op} {dtype} {shape}");
        for (got, expected) in got.iter().zip(&expected) {
            let bound = [1e-5, 2e-3, 2e-2][case.dtype as usize] * expected.abs().max(1e-3);
            assert!((got - expected).abs() <= bound, "{name}: {got}, MLX {expected}");
        }
        if case.once {
            assert_eq!((ours.read, ours.written), case.ideal, "{name}");
        }
        assert!(ours.bytes() <= mlx.bytes(), "{name}: more bytes than MLX");
        assert!(ours.loads <= mlx.loads, "{name}: more loads than MLX");
        assert!(ours.barriers <= mlx.barriers, "{name}: more barriers than MLX");
        assert!(ours.simd_operations <= mlx.simd_operations, "{name}: more SIMD operations");
        assert!(ours.threadgroup_bytes <= mlx.threadgroup_bytes, "{name}: more threadgroup memory");
        less += usize::from(ours.bytes() < mlx.bytes());
    }
    table.push_str(
        "\nParameters are left out. MLX's loads are those of AIR, before the GPU's own compiler may \
         join them.\n",
    );
    for line in table.lines() {
        println!("table: {line}");
    }
    let count = cases.len();
    let text = format!(
        "{count} counts side by side: ours never above MLX's bytes, loads, barriers, SIMD \
         operations and threadgroup memory, and below its bytes in {less}"
    );
    result("counts", count, &text);
}
