//! `rope`: kinds of offsets, the inverse rotation, degenerate numbers, traffic. The conformance
//! table (`tests/catalog`) tests its values.

use mlx_primitives::device::Device;
use mlx_primitives::ops::Offset;
use mlx_primitives::{Array, Dtype, builtin, ops, transforms};

use crate::support::compare::{assert_close, assert_same, differing, numbers};
use crate::support::input::{Layout, random32, values};
use crate::support::{self, Checked, each_device};

/// Whether our result must equal MLX's in every bit. On a GPU and with Apple's libraries, MLX
/// computes sines and cosines differently.
fn follows_mlx_bit_for_bit(device: Device) -> bool {
    device == Device::Cpu && cfg!(all(target_os = "linux", target_arch = "x86_64"))
}

/// The arguments of a call. The methods pass them to our op or to MLX's op.
#[derive(Clone, Copy)]
struct Call<'a> {
    dims: i32,
    traditional: bool,
    base: Option<f32>,
    scale: f32,
    offset: &'a Array,
    freqs: Option<&'a Array>,
}

impl Call<'_> {
    fn ours(&self, x: &Array) -> mlx_primitives::Result<Array> {
        let Self { dims, traditional, base, scale, offset, freqs } = *self;
        ops::rope(x, ops::Rope { dims, traditional, base, scale, offset: offset.into(), freqs })
    }

    fn builtin(&self, x: &Array) -> mlx_primitives::Result<Array> {
        let Self { dims, traditional, base, scale, offset, freqs } = *self;
        builtin::rope(x, ops::Rope { dims, traditional, base, scale, offset: offset.into(), freqs })
    }
}

const PLAIN: (i32, bool, Option<f32>, f32) = (8, false, Some(1e4), 1.0);

fn plain(offset: &Array, traditional: bool) -> Call<'_> {
    let (dims, _, base, scale) = PLAIN;
    Call { dims, traditional, base, scale, offset, freqs: None }
}

#[test]
fn offsets_of_every_kind() -> Checked {
    each_device(|_| {
        let x = random32(&[4, 3, 2, 8], 3)?;
        let of = |offset: &Array| plain(offset, false).ours(&x);
        let each = Array::from_slice(&[0i32, 100, 3, 41], [4])?;
        let one = each.i(1..2)?;
        let (of_each, of_one) = (of(&each)?, of(&one)?);
        for kind in [Dtype::Int8, Dtype::Int16, Dtype::Int64, Dtype::Uint32] {
            assert_same(&of(&each.astype(kind)?)?, &of_each, kind.name())?;
            assert_same(&of(&one.astype(kind)?)?, &of_one, "one element")?;
            assert_same(&of(&one.astype(kind)?.squeeze([0])?)?, &of_one, "a scalar")?;
        }
        assert_same(&of(&each.add(1)?.subtract(1)?)?, &of_each, "computed")?;
        assert_same(&of(&one.broadcast_to([4])?)?, &of_one, "broadcast")?;
        // In models, x is a view of [batch, time, heads, features] with the middle axes transposed.
        let models = x.transpose([0, 2, 1, 3])?.contiguous()?.transpose([0, 2, 1, 3])?;
        assert_same(&plain(&each, false).ours(&models)?, &of_each, "exchanged")?;
        Ok(())
    })
}

#[test]
fn a_number_is_a_scalar_array() -> Checked {
    let x = random32(&[2, 3, 5, 8], 4)?;
    let (dims, traditional, base, scale) = PLAIN;
    let number = ops::rope(
        &x,
        ops::Rope { dims, traditional, base, scale, offset: 5.into(), ..ops::Rope::default() },
    )?;
    let array = &Array::scalar(5)?;
    let array = ops::rope(
        &x,
        ops::Rope {
            dims,
            traditional,
            base,
            scale,
            offset: Offset::Each(array),
            ..ops::Rope::default()
        },
    )?;
    assert_same(&number, &array, "offset")?;
    Ok(())
}

#[test]
fn the_gradient_rotates_back() -> Checked {
    each_device(|device| {
        for traditional in [false, true] {
            let x = Layout::Transposed.make(&[2, 3, 5, 10], Dtype::Float32, 9)?;
            let offset = &Array::from_slice(&[3i32, 90], [2])?;
            let call = plain(offset, traditional);
            let y = call.ours(&x)?;
            let back = transforms::vjp(|x| Ok(vec![call.ours(&x[0])?]), &[&x], &[&y])?.1;
            // Each pair of features, a vector whose norm is at most 6, is rotated twice. Each
            // rotation rounds four times.
            assert_close(&numbers(&back[0])?, &numbers(&x)?, 6.0 * 8.0 * 6e-8, "there and back");
            let want = transforms::vjp(|x| Ok(vec![call.builtin(&x[0])?]), &[&x], &[&y])?.1;
            if follows_mlx_bit_for_bit(device) {
                assert_same(&back[0], &want[0], "MLX's vjp")?;
            }
        }
        Ok(())
    })
}

/// Compares a call with MLX's on degenerate inputs. On devices on which MLX computes as we do, the
/// bits must be equal. On all devices, the same elements must be finite.
fn assert_degenerates_alike(device: Device, call: Call, x: &Array, what: &str) -> Checked {
    let (ours, builtin) = (call.ours(x)?, call.builtin(x)?);
    if follows_mlx_bit_for_bit(device) {
        assert_eq!(differing(&ours, &builtin)?, 0, "{what}");
    }
    for (got, want) in numbers(&ours)?.iter().zip(numbers(&builtin)?) {
        assert_eq!(got.is_finite(), want.is_finite(), "{what}: {got} {want}");
    }
    Ok(())
}

#[test]
fn degenerate_numbers_are_those_of_mlx() -> Checked {
    each_device(|device| {
        let x = random32(&[1, 2, 3, 8], 10)?;
        let zero = Array::from_slice(&[0.0f32, 1.0, f32::INFINITY, f32::NAN], [4])?;
        let offset = &Array::scalar(1)?;
        for scale in [1.0, f32::INFINITY, f32::NAN, 1e38] {
            for (base, freqs) in [(Some(0.0), None), (Some(-1.0), None), (None, Some(&zero))] {
                let call = Call { base, freqs, scale, ..plain(offset, false) };
                let what = format!("base {base:?} scale {scale}");
                assert_degenerates_alike(device, call, &x, &what)?;
            }
        }
        let mut spoilt = values(48, 11, 1.0);
        (spoilt[3], spoilt[20], spoilt[41]) = (f32::NAN, f32::INFINITY, -f32::MAX);
        let x = Array::from_slice(&spoilt, [1, 2, 3, 8])?;
        for traditional in [false, true] {
            assert_degenerates_alike(device, plain(offset, traditional), &x, "spoilt x")?;
        }
        Ok(())
    })
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_each_byte_once() -> Checked {
    let x = random32(&[1, 8, 16, 64], 1)?;
    x.eval()?;
    let moved = support::moved(|| {
        ops::rope(&x, ops::Rope { dims: 64, offset: 3.into(), ..ops::Rope::default() })
    })?;
    let bytes = x.nbytes() as u64;
    assert_eq!((moved[0].arrays[0], moved[0].written()), ([bytes, 0, bytes], bytes));
    support::report_traffic("rope", &moved[..1], x.nbytes() * 2)
}
