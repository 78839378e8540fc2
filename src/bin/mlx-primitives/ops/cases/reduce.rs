use mlx_primitives::{Array, Result, ops, ops::Axes};

use super::{Inputs, Size, Workload, ready};

type Reduce = fn(&Array, Axes) -> Result<Array>;

/// Ours, and what MLX has in its place.
const OPS: [(&str, Reduce, Reduce); 5] = [
    ("sum", |x, axes| ops::sum(x, axes, false), total),
    (
        "mean",
        |x, axes| ops::mean(x, axes, false),
        |x, axes| match axes {
            Axes::Last => x.mean(-1, false),
            Axes::All => x.mean(.., false),
        },
    ),
    (
        "max",
        |x, axes| ops::max(x, axes, false),
        |x, axes| match axes {
            Axes::Last => x.max(-1, false),
            Axes::All => x.max(.., false),
        },
    ),
    (
        "sum_of_squares",
        |x, axes| ops::sum_of_squares(x, axes, false),
        |x, axes| total(&x.square()?, axes),
    ),
    ("norm", |x, axes| ops::norm(x, axes, false), |x, axes| total(&x.square()?, axes)?.sqrt()),
];

fn total(x: &Array, axes: Axes) -> Result<Array> {
    match axes {
        Axes::Last => x.sum(-1, false),
        Axes::All => x.sum(.., false),
    }
}

/// The result is no next input: nothing to chain, hence no decode or prefill sizes.
pub fn workloads() -> Vec<Workload> {
    let shapes = [(&[1, 1, 4096][..], Axes::Last), (&[8, 128, 768], Axes::Last)];
    let shapes = shapes.map(|(shape, axes)| (shape, axes, Size::Wide));
    let others = [
        (&[1, 512, 2048][..], Axes::All, Size::Wide),
        (&[4, 2048, 4096], Axes::Last, Size::Large),
        (&[4, 2048, 4096], Axes::All, Size::Large),
    ];
    OPS.into_iter()
        .flat_map(|op| shapes.into_iter().chain(others).map(move |on| (op, on)))
        .map(|(op, (shape, axes, size))| workload(op, shape, axes, size))
        .collect()
}

fn workload(
    (op, ours, builtin): (&'static str, Reduce, Reduce),
    shape: &'static [i32],
    axes: Axes,
    size: Size,
) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        let row = if axes == Axes::Last { shape[shape.len() - 1] as usize } else { x.size() };
        Ok(Inputs {
            read: x.nbytes(),
            written: x.nbytes() / row,
            products: None,
            x,
            ours: Box::new(move |x| ours(x, axes)),
            builtin: Some(Box::new(move |x| builtin(x, axes))),
        })
    };
    let variant = if axes == Axes::Last { "" } else { "all" };
    Workload::new(op, shape, variant, size, inputs)
}
