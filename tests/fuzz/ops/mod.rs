//! Fuzzes ops with arguments of random shapes, types, strides and options. A call must return an
//! error, or give the same results for strided views as for contiguous copies.

mod calls;
mod general;
mod transformed;

use std::path::Path;

use fastrand::Rng;
use mlx_primitives::{Array, Dtype, Result, eval};

use super::arrays::{Draw, numbers};
use super::case::{Case, Fuzzer, Run};
use super::child::note;
use super::mutation::one;

pub const FUZZER: Fuzzer = Fuzzer { name: "ops", allowance: 64 << 20, prepare };

/// An op's name, and a function that draws its arguments and calls it.
type Call = (&'static str, fn(&mut Draw) -> Result<Vec<Array>>);

/// Results are computed only if they take less than this many bytes.
const MOST: usize = 1 << 20;

fn prepare(_: &Path) -> anyhow::Result<Run> {
    let calls: Vec<Call> = [calls::OURS, general::GENERAL, transformed::TRANSFORMED].concat();
    Ok(Box::new(move |rng| {
        let &(name, call) = one(rng, &calls);
        let drawn = Rng::with_seed(rng.u64(..));
        note(name);
        let mut draw = Draw::new(drawn.clone(), false);
        let of_views = run(call, &mut draw);
        draw.check_held();
        let of_copies = run(call, &mut Draw::new(drawn, true));
        compare(&of_views, &of_copies, draw.wild);
        Case::new(0, &of_views)
    }))
}

/// Calls the op, and computes its results unless they are too large.
fn run(call: fn(&mut Draw) -> Result<Vec<Array>>, draw: &mut Draw) -> Result<Vec<Array>> {
    let results = call(draw)?;
    let small: Vec<&Array> = results.iter().filter(|result| result.nbytes() < MOST).collect();
    eval(small.iter().copied())?;
    for result in &small {
        assert_eq!(numbers(result)?.len(), result.size());
    }
    Ok(results)
}

fn compare(of_views: &Result<Vec<Array>>, of_copies: &Result<Vec<Array>>, wild: bool) {
    let (views, copies) = match (of_views, of_copies) {
        (Ok(views), Ok(copies)) => (views, copies),
        (Err(_), Err(_)) => return,
        (Ok(_), Err(error)) => panic!("copies are refused and views are not: {error}"),
        (Err(error), Ok(_)) => panic!("views are refused and copies are not: {error}"),
    };
    assert_eq!(views.len(), copies.len(), "results");
    for (of_views, of_copies) in views.iter().zip(copies) {
        assert_eq!(of_views.shape(), of_copies.shape(), "shapes");
        assert_eq!(of_views.dtype(), of_copies.dtype(), "types");
        if wild || of_views.nbytes() >= MOST {
            continue; // sums of such numbers depend on the order of their terms
        }
        let (a, b) = (numbers(of_views).expect("numbers"), numbers(of_copies).expect("numbers"));
        let finite = |x: &&f32| x.is_finite();
        let largest = b.iter().filter(finite).fold(1.0f32, |most, x| most.max(x.abs()));
        let tolerance = match of_views.dtype() {
            Dtype::Float16 | Dtype::Bfloat16 => 0.05,
            dtype if dtype.is_floating() || dtype == Dtype::Complex64 => 1e-3,
            _ => 0.0,
        };
        for (at, (a, b)) in a.iter().zip(&b).enumerate() {
            let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * largest;
            assert!(same, "{a} of views at {at}, {b} of copies, {:?}", of_views.shape());
        }
    }
}
