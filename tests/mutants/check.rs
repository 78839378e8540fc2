//! Runs a case in the simulator through `eval_gpu`, and compares it with the CPU kernels. Other
//! tests compare the CPU kernels with float64 references.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx_primitives::simulator::{Schedule, with_metal, without_metal};
use mlx_primitives::{Array, Dispatched, Dtype, Result, dispatched};

use crate::cases::Case;

/// How a run failed, and its message.
#[derive(Clone, Debug)]
pub struct Failure {
    pub kind: &'static str,
    pub text: String,
}

/// The numbers of a result, and the length of its rows.
struct Output {
    row: usize,
    values: Vec<f64>,
}

/// The results of a case without a fault.
pub struct Original {
    expected: Vec<Output>,
    traffic: Vec<Traffic>,
    pub dispatched: Vec<Dispatched>,
}

/// The memory traffic of a dispatch. For each buffer: the loads, the stores, and the bytes of both.
/// Then the barriers of threadgroups and of SIMD groups, and the exchanges between lanes.
type Traffic = (BTreeMap<u32, [u64; 4]>, [u64; 3]);

fn fail<T>(kind: &'static str, text: impl Into<String>) -> std::result::Result<T, Failure> {
    Err(Failure { kind, text: text.into() })
}

/// The numbers of an array. A 32-bit code becomes two numbers.
fn numbers(x: &Array) -> Result<Output> {
    let row = x.shape().last().map_or(1, |&axis| axis.max(1) as usize);
    if x.dtype() == Dtype::Uint32 {
        let codes = x.to_vec::<u32>()?;
        let halves = codes.iter().flat_map(|code| [code >> 16, code & 0xffff]);
        return Ok(Output { row, values: halves.map(f64::from).collect() });
    }
    Ok(Output { row, values: x.to_vec::<f32>()?.into_iter().map(f64::from).collect() })
}

fn values(case: &Case) -> Result<Vec<Output>> {
    case.results()?.iter().map(numbers).collect()
}

fn traffic(dispatched: &[Dispatched]) -> Vec<Traffic> {
    let of = |dispatched: &Dispatched| {
        let report = &dispatched.report;
        let buffers = report
            .buffers
            .iter()
            .map(|(index, t)| (*index, [t.loads, t.stores, t.read_bytes, t.written_bytes]));
        let [groups, simds] = [report.threadgroup_barriers, report.simdgroup_barriers];
        (buffers.collect(), [groups, simds, report.simd_operations])
    };
    dispatched.iter().map(of).collect()
}

/// The allowed error of a number in a row. One part is relative, for float32 sums. The other is a
/// small part of the row's root mean square, for sums whose terms cancel.
fn bound(row: &[f64]) -> impl Fn(f64) -> f64 {
    let finite = || row.iter().filter(|v| v.is_finite());
    let squares: f64 = finite().map(|v| v * v).sum();
    let size = (squares / finite().count().max(1) as f64).sqrt();
    move |want: f64| 3e-5 * want.abs() + 1e-5 * size
}

fn compare(got: &[Output], want: &[Output]) -> std::result::Result<(), Failure> {
    for (output, (got, want)) in got.iter().zip(want).enumerate() {
        let rows = got.values.chunks(want.row).zip(want.values.chunks(want.row));
        for (row, (got, want)) in rows.enumerate() {
            let bound = bound(want);
            for (at, (got, want)) in got.iter().zip(want).enumerate() {
                let same = got == want || got.is_nan() && want.is_nan();
                let near = got.is_finite() && (got - want).abs() <= bound(*want);
                if !same && !near {
                    return fail(
                        "result",
                        format!("{output}, row {row} at {at}: {got}, not {want}"),
                    );
                }
            }
        }
    }
    Ok(())
}

fn simulated(
    case: &Case,
    schedule: Schedule,
) -> std::result::Result<(Vec<Output>, Vec<Dispatched>), Failure> {
    dispatched();
    let run = || with_metal(schedule, || values(case)).and_then(|values| values);
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(values)) => Ok((values, dispatched())),
        Ok(Err(error)) => fail("fault", error.to_string()),
        Err(_) => fail("crash", "a panic"),
    }
}

/// Runs the case without a fault. Its results must be correct in the forward order of threads, and
/// must have the same bits and the same traffic in every order in `orders`.
pub fn original(case: &Case, orders: &[Schedule]) -> std::result::Result<Original, Failure> {
    let expected = match without_metal(|| values(case)) {
        Ok(values) => values,
        Err(error) => return fail("reference", error.to_string()),
    };
    let (values, dispatched) = simulated(case, Schedule::Forward)?;
    compare(&values, &expected)?;
    let original = Original { expected, traffic: traffic(&dispatched), dispatched };
    orders.iter().try_for_each(|&order| in_order(case, order, &values, &original))?;
    Ok(original)
}

/// Runs the case with a fault that is already planted. An error says how the fault was detected.
pub fn mutant(case: &Case, original: &Original) -> std::result::Result<(), Failure> {
    let (values, dispatched) = simulated(case, Schedule::Forward)?;
    compare(&values, &original.expected)?;
    if traffic(&dispatched) != original.traffic {
        return fail("traffic", "other loads, stores, barriers or exchanges");
    }
    in_order(case, Schedule::Reversed, &values, original)
}

fn in_order(
    case: &Case,
    schedule: Schedule,
    forward: &[Output],
    original: &Original,
) -> std::result::Result<(), Failure> {
    let (values, dispatched) = simulated(case, schedule)?;
    let bits = |values: &[Output]| -> Vec<u64> {
        values
            .iter()
            .flat_map(|output| &output.values)
            .map(|v| if v.is_nan() { 0 } else { v.to_bits() })
            .collect()
    };
    if bits(&values) != bits(forward) || traffic(&dispatched) != original.traffic {
        return fail("order", format!("{schedule} is not as forward"));
    }
    Ok(())
}
