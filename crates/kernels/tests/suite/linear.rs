use crate::reference_loops::dot;
use crate::testing::*;
use mlx_primitives_kernels::linear::*;
use mlx_primitives_kernels::{Activation, RowOrder};

struct Case {
    m: usize,
    n: usize,
    k: usize,
    columns: bool,
    turned: bool,
    activation: Option<Activation>,
    /// Whether to add a bias and a residual to the product.
    added: bool,
    order: RowOrder,
}

const PLAIN: Case = Case {
    m: 0,
    n: 0,
    k: 0,
    columns: false,
    turned: false,
    activation: None,
    added: false,
    order: RowOrder::ByCount,
};

fn transposed<T: Copy>(rows: &[T], n: usize, k: usize) -> Vec<T> {
    (0..k * n).map(|i| rows[i % n * k + i / n]).collect()
}

fn run<T: Sample>(on: Machine, case: &Case, x: &[T], w: &[T], extra: &[T]) -> Vec<T> {
    run_with(linear_on::<T>, on, case, x, w, extra)
}

fn run_with<T: Sample, W: Sample>(
    kernel: unsafe fn(Machine, &LinearCall),
    on: Machine,
    case: &Case,
    x: &[T],
    w: &[W],
    extra: &[T],
) -> Vec<T> {
    let &Case { m, n, k, columns, turned, activation, added, order } = case;
    // The extra elements after the output detect writes beyond its end.
    let mut out = vec![T::from_f32(7.0); m * n + 32];
    let null = std::ptr::null();
    let call = LinearCall {
        m,
        n,
        k,
        x: x.as_ptr().cast(),
        turned,
        w: w.as_ptr().cast(),
        of_w: W::ELEMENT,
        columns,
        bias: if added { extra.as_ptr().cast() } else { null },
        activation,
        residual: if added { extra.as_ptr().cast() } else { null },
        order,
        out: out.as_mut_ptr().cast(),
    };
    // SAFETY: all buffers have the lengths that the call requires.
    unsafe { kernel(on, &call) };
    assert!(out[m * n..].iter().all(|v| v.to_f32() == 7.0), "stray write");
    if added {
        // The output overwrites the residual.
        let mut place = extra.to_vec();
        let call =
            LinearCall { residual: place.as_ptr().cast(), out: place.as_mut_ptr().cast(), ..call };
        // SAFETY: as above; the output may overwrite the residual.
        unsafe { kernel(on, &call) };
        assert_same(&place[..m * n], &out[..m * n], "in place");
    }
    out.truncate(m * n);
    out
}

/// Computes the products in f64, and then the bias, activation and residual. Returns the results
/// and bounds of their errors.
fn reference<T: Sample>(case: &Case, x: &[T], w: &[T], extra: &[T]) -> (Vec<f64>, Vec<f64>) {
    let &Case { m, n, k, added, activation, .. } = case;
    let (x, w, extra) = (wide(x), wide(w), wide(extra));
    let (mut out, mut bound) = (Vec::new(), Vec::new());
    for i in 0..m {
        for j in 0..n {
            let (mut y, reach) = dot(&x[i * k..][..k], &w[j * k..][..k]);
            // Each of the k roundings is at most half an ulp of the sum of magnitudes. Their sum
            // grows about as sqrt(k).
            let slack = reach * 6e-8 * (4.0 + (k as f64).sqrt());
            if added {
                y += extra[j];
            }
            if activation == Some(Activation::Relu) {
                y = y.max(0.0);
            }
            if added {
                y += extra[i * n + j];
            }
            out.push(y);
            bound.push(
                slack + 3.0 * f64::from(T::EPSILON) * (y.abs() + f64::from(u8::from(added)) * 8.0),
            );
        }
    }
    (out, bound)
}

const SHAPES: [(usize, usize, usize); 16] = [
    (1, 1, 1),
    (1, 37, 100),
    (2, 16, 31),
    (3, 5, 0),
    (4, 33, 257),
    (5, 1100, 19),
    (7, 12, 64),
    (8, 50, 1030),
    (9, 24, 33),
    (16, 13, 513),
    (17, 100, 129),
    (20, 35, 0),
    (33, 97, 40),
    (48, 31, 1099),
    (67, 7, 530),
    (300, 15, 18),
];

fn shapes<T: Sample>() {
    for (m, n, k) in SHAPES {
        let (x, w) = (values::<T>(m * k, 2.0), values::<T>(n * k, 2.0));
        let extra = values::<T>(m * n, 3.0);
        let (columns_of_x, columns_of_w) = (transposed(&x, m, k), transposed(&w, n, k));
        for (columns, turned, added) in [
            (false, false, false),
            (true, false, false),
            (false, false, true),
            (false, true, false),
            (true, true, true),
        ] {
            let activation = added.then_some(Activation::Relu);
            let case = Case { m, n, k, columns, turned, activation, added, ..PLAIN };
            let what = format!("{m}x{n}x{k} columns {columns} turned {turned} added {added}");
            let (expected, bound) = reference(&case, &x, &w, &extra);
            let w = if columns { &columns_of_w } else { &w };
            let x = if turned { &columns_of_x } else { &x };
            let mut plain: Option<Vec<T>> = None;
            for machine in machines_and_tiles() {
                let got = run(machine, &case, x, w, &extra);
                for (i, got) in got.iter().enumerate() {
                    let error = (f64::from(got.to_f32()) - expected[i]).abs();
                    assert!(error <= bound[i], "{what} {:?}: {error} at {i}", machine.level);
                }
                // The bf16 dot instruction adds in a different order, so its results may differ.
                if !(T::IS_BF16 && machine.level.packs_bf16()) {
                    let plain = plain.get_or_insert_with(|| got.clone());
                    assert_same(&got, plain, &what);
                }
            }
        }
    }
}

each_type!(shapes);

/// The exact products of the inputs are zero, so the results are rounding errors. A different order
/// of additions would change these errors.
fn rows_have_one_order_at_any_width<T: Sample>() {
    let (m, n, k) = (40, 21, 1030);
    let x = with_opposite_halves(values::<T>(m * k, 2.0), m);
    let mut w = values::<T>(n * k, 2.0);
    repeat_halves(&mut w, n);
    let across = transposed(&w, n, k);
    for machine in machines_and_tiles() {
        for (columns, order) in [
            (false, RowOrder::Tokens),
            (false, RowOrder::Prompt),
            (true, RowOrder::Tokens),
            (true, RowOrder::Prompt),
        ] {
            let case = |m| Case { m, n, k, columns, order, ..PLAIN };
            let w = if columns { &across } else { &w };
            let all = run(with_one_thread(machine), &case(m), &x, w, &[]);
            for rows in [0..1, 3..4, 1..6, 0..8, 2..11, 5..38, 0..40] {
                let some = run(machine, &case(rows.len()), &x[rows.start * k..], w, &[]);
                let what = format!("{rows:?}, {order:?}, columns {columns}, {:?}", machine.level);
                assert_same(&some, &all[rows.start * n..rows.end * n], &what);
            }
        }
    }
}

each_type!(rows_have_one_order_at_any_width);

/// Checks that an x of f32 gives the bits of weights that were converted to f32.
fn weights_of_another_type<T: Sample>() {
    for (m, n, k) in SHAPES.into_iter().chain([(260, 300, 540)]) {
        let (x, w) = (values::<f32>(m * k, 2.0), values::<T>(n * k, 2.0));
        let floats: Vec<f32> = w.iter().map(|v| v.to_f32()).collect();
        let extra = values::<f32>(m * n.max(1), 3.0);
        for (order, added) in
            [(RowOrder::Tokens, false), (RowOrder::Prompt, false), (RowOrder::ByCount, true)]
        {
            let activation = added.then_some(Activation::Gelu);
            let case = Case { m, n, k, order, activation, added, ..PLAIN };
            for machine in machines_and_tiles() {
                let expected = run(machine, &case, &x, &floats, &extra);
                let got = run_with(mixed_on::<T>, machine, &case, &x, &w, &extra);
                let what = format!("{m}x{n}x{k} {order:?} {added} {:?}", machine.level);
                assert_same(&got, &expected, &what);
            }
        }
    }
}

each_type!(weights_of_another_type);

/// Checks that an element of the result does not change if x or the weights are stored transposed,
/// or if the product has fewer rows or columns.
fn sums_are_the_same_in_each_place<T: Sample>() {
    let (m, n, k) = (140, 150, 70);
    let (x, w) = (values::<T>(m * k, 2.0), values::<T>(n * k, 2.0));
    for machine in machines_and_tiles() {
        let case = |m, n, turned, columns| Case { m, n, k, turned, columns, ..PLAIN };
        let all = run(machine, &case(m, n, false, false), &x, &w, &[]);
        for (m, n) in [(m, n), (m, 35), (m, 7), (37, n), (9, n)] {
            let (x, w) = (&x[..m * k], &w[..n * k]);
            let expected: Vec<T> = (0..m * n).map(|at| all[at / n * 150 + at % n]).collect();
            for (turned, columns) in [(false, false), (false, true), (true, false), (true, true)] {
                let x = if turned { transposed(x, m, k) } else { x.to_vec() };
                let w = if columns { transposed(w, n, k) } else { w.to_vec() };
                let got = run(machine, &case(m, n, turned, columns), &x, &w, &[]);
                let what = format!("{m}x{n} {turned} {columns} {:?}", machine.level);
                assert_same(&got, &expected, &what);
            }
        }
    }
}

each_type!(sums_are_the_same_in_each_place);

#[test]
fn weights_that_are_interleaved_in_parts() {
    let (m, n, k) = (2, 300, 65_538);
    let (x, w) = (values::<Bf16>(m * k, 2.0), values::<Bf16>(n * k, 2.0));
    let across = transposed(&w, n, k);
    for machine in machines_and_tiles() {
        if machine.level.multiplies_tiles() {
            let case = |columns| Case { m, n, k, columns, order: RowOrder::Prompt, ..PLAIN };
            let expected = run(machine, &case(false), &x, &w, &[]);
            assert_same(&run(machine, &case(true), &x, &across, &[]), &expected, "in parts");
        }
    }
}

fn blocks_of_an_x_beyond_the_second_cache<T: Sample>() {
    // In bf16, x takes more than 1 MB. The output has more columns than the largest block
    // of a product in its type.
    let (m, n, k) = if T::IS_BF16 { (260, 530, 2060) } else { (260, 300, 540) };
    let (x, w) = (values::<T>(m * k, 2.0), values::<T>(n * k, 2.0));
    let (x_across, w_across) = (transposed(&x, m, k), transposed(&w, n, k));
    for machine in machines_and_tiles() {
        let case = |m, turned, columns| Case { m, n, k, turned, columns, ..PLAIN };
        let all = run(machine, &case(m, false, false), &x, &w, &[]);
        for (turned, columns) in [(false, true), (true, true)] {
            let x = if turned { &x_across } else { &x };
            let got = run(machine, &case(m, turned, columns), x, &w_across, &[]);
            assert_same(&got, &all, &format!("turned {turned} {:?}", machine.level));
        }
        let some = run(machine, &case(65, false, false), &x[..65 * k], &w, &[]);
        assert_same(&some, &all[..65 * n], "a quarter of the rows");
    }
}

each_type!(blocks_of_an_x_beyond_the_second_cache);

#[test]
fn each_step_is_rounded() {
    let (m, n, k) = (2, 20, 64);
    let (x, w) = (values::<Bf16>(m * k, 2.0), values::<Bf16>(n * k, 2.0));
    let extra = values::<Bf16>(m * n, 3.0);
    let case = |activation, added| Case { m, n, k, columns: false, activation, added, ..PLAIN };
    let bare = run(Machine::current(), &case(None, false), &x, &w, &extra);
    let full = run(Machine::current(), &case(Some(Activation::Relu), true), &x, &w, &extra);
    for i in 0..m * n {
        let biased = rounded::<Bf16>(bare[i].to_f32() + extra[i % n].to_f32());
        let expected = rounded::<Bf16>(biased.max(0.0) + extra[i].to_f32());
        assert_eq!(full[i].to_f32(), expected);
    }
}

#[test]
fn infinities_and_nan_stay_in_their_rows() {
    for machine in machines_and_tiles() {
        for m in [1, 8, 20] {
            let (n, k) = (18, 70);
            let mut x = vec![1.0f32; m * k];
            let w = vec![1.0f32; n * k];
            x[3] = f32::INFINITY;
            if m > 1 {
                x[k + 5] = f32::NAN;
            }
            let case = Case { m, n, k, ..PLAIN };
            let out = run(machine, &case, &x, &w, &[]);
            assert!(out[..n].iter().all(|&v| v == f32::INFINITY));
            for (i, v) in out.iter().enumerate().skip(n) {
                assert!(if i < 2 * n { v.is_nan() } else { *v == 70.0 }, "{m} {i}: {v}");
            }
        }
    }
}
