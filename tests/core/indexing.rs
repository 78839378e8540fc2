//! Selects parts of arrays by tuples of indices, and compares them with the elements at the
//! expected positions.

#![allow(clippy::reversed_empty_ranges, reason = "indices below 0 count from the end")]

use mlx_primitives::{Array, Ellipsis, Error, Index, NewAxis, Result, step, transforms};

use crate::support::{Checked, message};

/// The numbers 0 to 23 in shape (2, 3, 4).
fn x() -> Result<Array> {
    Array::arange::<i32>(0.0, 24.0, 1.0)?.reshape((2, 3, 4))
}

fn is(got: Result<Array>, shape: &[i32], want: &[i32]) -> Checked {
    let got = got?;
    assert_eq!((got.shape(), &*got.to_vec::<i32>()?), (shape, want));
    Ok(())
}

#[test]
fn numbers_drop_their_axes() -> Checked {
    let x = x()?;
    is(x.i((1, 2, 3)), &[], &[23])?;
    is(x.i((-2, -1, 0)), &[], &[8])?;
    is(x.i((0, 1)), &[4], &[4, 5, 6, 7])?;
    is(x.i((.., 0, 1)), &[2], &[1, 13])?;
    is(x.i((1, .., -1)), &[3], &[15, 19, 23])?;
    is(x.i(1)?.i(0), &[4], &[12, 13, 14, 15])
}

#[test]
fn ranges_keep_their_axes() -> Checked {
    let x = x()?;
    is(x.i((1.., ..1, 1..3)), &[1, 1, 2], &[13, 14])?;
    is(x.i((0, 1..3, -1)), &[2], &[7, 11])?;
    is(x.i((0, 0, 1..=2)), &[2], &[1, 2])?;
    is(x.i((0, 0, ..=1)), &[2], &[0, 1])?;
    is(x.i((0, 0, 2..=-1)), &[2], &[2, 3])?;
    is(x.i((0, 0, ..=-2)), &[3], &[0, 1, 2])?;
    is(x.i((0, 0, -2..)), &[2], &[2, 3])?;
    is(x.i((0, 0, 0..=i32::MAX)), &[4], &[0, 1, 2, 3])?;
    is(x.i((0, 0, 3..1)), &[0], &[])?;
    is(x.i((0, 0, 7..9)), &[0], &[])?;
    is(x.i(()), x.shape(), &x.to_vec::<i32>()?)
}

#[test]
fn steps_go_both_ways() -> Checked {
    let x = Array::arange::<i32>(0.0, 6.0, 1.0)?;
    for (range, want) in [
        (step(.., 2), &[0, 2, 4][..]),
        (step(1.., 2), &[1, 3, 5]),
        (step(..=4, 4), &[0, 4]),
        (step(.., -1), &[5, 4, 3, 2, 1, 0]),
        (step(4.., -2), &[4, 2, 0]),
        (step(..2, -1), &[5, 4, 3]),
        (step(4..1, -1), &[4, 3, 2]),
        (step(1..4, -1), &[]),
        (step(-1..-4, -2), &[5, 3]),
        (step(9..-9, -3), &[5, 2]),
        (step(step(.., 2), -1), &[5, 3, 1]),
        (step(.., i32::MAX), &[0]),
        (step(.., i32::MIN), &[5]),
        (step(i32::MIN..i32::MAX, 5), &[0, 5]),
        (step(i32::MAX..i32::MIN, -5), &[5, 0]),
    ] {
        is(x.i(range), &[want.len() as i32], want)?;
        is(x.slice_axis(-1, range), &[want.len() as i32], want)?;
    }
    // A single number in `step` selects one element, for any step.
    is(x.i(step(2, -1)), &[], &[2])?;
    let none = Array::zeros::<i32>(0)?;
    is(none.i(step(.., -1)), &[0], &[])
}

#[test]
fn ellipses_and_new_axes() -> Checked {
    let x = x()?;
    is(x.i((Ellipsis, 0)), &[2, 3], &[0, 4, 8, 12, 16, 20])?;
    is(x.i((0, Ellipsis, 1)), &[3], &[1, 5, 9])?;
    is(x.i((0, 1, 2, Ellipsis)), &[], &[6])?;
    assert_eq!(x.i(Ellipsis)?.shape(), [2, 3, 4]);
    assert_eq!(x.i(NewAxis)?.shape(), [1, 2, 3, 4]);
    assert_eq!(x.i((Ellipsis, NewAxis))?.shape(), [2, 3, 4, 1]);
    assert_eq!(x.i((NewAxis, 0, NewAxis, 0..2, NewAxis))?.shape(), [1, 1, 2, 1, 4]);
    is(x.i((0, NewAxis, NewAxis, 1, 1)), &[1, 1], &[5])
}

#[test]
fn indices_made_at_run_time() -> Checked {
    let x = x()?;
    let mut index = vec![Index::from(Ellipsis)];
    index.push(step(.., -3));
    is(x.i((0, 0))?.i(&index[..]), &[2], &[3, 0])?;
    is(x.i([Index::from(1), Index::from(0), Index::from(..2)]), &[2], &[12, 13])
}

#[test]
fn invalid_indices_are_refused() -> Checked {
    let x = x()?;
    for (at, axis) in [(2, 0), (-3, 0), (i32::MAX, 0), (i32::MIN, 0)] {
        match x.i((at, ..)) {
            Err(Error::OutOfRange { op, expected, got }) => {
                assert_eq!((&*op, got), ("i", i64::from(at)));
                assert!(expected.contains(&format!("axis {axis}")), "{expected}");
            }
            other => panic!("{at}: {other:?}"),
        }
    }
    let text = "[i] expected an index within the 4 elements of axis 2, got 4";
    assert_eq!(message(x.i((.., NewAxis, 0, 4))), text);
    assert!(matches!(x.i((0, 0, 0, 0)), Err(Error::Argument { .. })));
    assert!(message(x.i((Ellipsis, Ellipsis))).contains("Ellipsis"));
    assert!(message(x.i(step(.., 0))).contains("steps other than zero"));
    assert!(matches!(x.slice_axis(3, ..), Err(Error::OutOfRange { got: 3, .. })));
    assert!(matches!(Array::scalar(1i32)?.i(0), Err(Error::Argument { .. })));
    assert!(matches!(Array::zeros::<i32>(0)?.i(0), Err(Error::OutOfRange { .. })));
    Ok(())
}

#[test]
fn updates_broadcast_to_the_selection() -> Checked {
    let x = Array::zeros::<i32>((2, 3))?;
    let row = Array::from_slice(&[1i32, 2, 3], 3)?;
    is(x.slice_update(1, &row), &[2, 3], &[0, 0, 0, 1, 2, 3])?;
    is(x.slice_update((.., -1), &Array::scalar(7)?), &[2, 3], &[0, 0, 7, 0, 0, 7])?;
    let pair = Array::from_slice(&[4i32, 5], 2)?;
    is(x.slice_update((Ellipsis, 1), &pair), &[2, 3], &[0, 4, 0, 0, 5, 0])?;
    is(x.slice_update((NewAxis, 0, 1..), &pair), &[2, 3], &[0, 4, 5, 0, 0, 0])?;
    is(x.slice_update((0, 0), &Array::scalar(9)?), &[2, 3], &[9, 0, 0, 0, 0, 0])?;
    assert!(x.slice_update(0, &pair).is_err());
    assert!(matches!(x.slice_update(2, &row), Err(Error::OutOfRange { .. })));
    assert!(x.slice_update(step(.., 2), &row).is_err());
    Ok(())
}

#[test]
fn selections_are_differentiable() -> Checked {
    let x = Array::ones::<f32>((2, 3))?;
    let gradient = transforms::grad(|x| x.i((1, step(.., -2)))?.sum(..), &x)?;
    assert_eq!(gradient.to_vec::<f32>()?, [0.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
    Ok(())
}
