//! `rope` against MLX's, bit for bit on the CPU, and against f64: positions, layouts, inverse.

use mlx_primitives::device::Device;
use mlx_primitives::ops::Offset;
use mlx_primitives::{Array, Dtype, builtin, ops, transforms};

use crate::support::compare::{assert_close, assert_same, differing, numbers};
use crate::support::input::{FLOATS, LAYOUTS, Layout, random, random32, values};
use crate::support::{self, Checked, each_device, reference};

/// MLX has other sines and cosines with Apple's libraries and on the GPU.
fn follows_mlx_bit_for_bit(device: Device) -> bool {
    device == Device::Cpu && cfg!(all(target_os = "linux", target_arch = "x86_64"))
}

/// One call of rope, of ours or of MLX's.
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
        ops::rope(x, dims, traditional, base, scale, offset, freqs)
    }

    fn builtin(&self, x: &Array) -> mlx_primitives::Result<Array> {
        let Self { dims, traditional, base, scale, offset, freqs } = *self;
        builtin::rope(x, dims, traditional, base, scale, offset, freqs)
    }

    /// The result in f64, and what the error of each element is proportional to.
    fn exact(&self, x: &Array) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
        let shape: Vec<usize> = x.shape().iter().map(|&dim| dim as usize).collect();
        let rank = shape.len();
        let offsets = self.offset.astype(Dtype::Int32)?.to_vec::<i32>()?;
        let rope = reference::Rope {
            shape: [
                shape[0],
                shape[1..rank - 2].iter().product(),
                shape[rank - 2],
                shape[rank - 1],
            ],
            dims: self.dims as usize,
            traditional: self.traditional,
            freqs: match self.freqs {
                Some(freqs) => numbers(freqs)?,
                None => {
                    let base = f64::from(self.base.unwrap_or_default());
                    reference::Rope::base(base, self.dims as usize)
                }
            },
            scale: f64::from(self.scale),
            offsets: &offsets,
        };
        Ok(rope.apply(&numbers(x)?))
    }

    /// Bit-equal to MLX on the CPU, and near f64: how many elements were compared.
    fn check(&self, device: Device, x: &Array, what: &str) -> anyhow::Result<usize> {
        let y = self.ours(x)?;
        if follows_mlx_bit_for_bit(device) {
            assert_same(&y, &self.builtin(x)?, what)?;
        }
        let (want, reach) = self.exact(x)?;
        // The angle passes some five roundings of f32, and the logarithm of the base multiplies
        // its own by up to ln(base) ~ 10; sine, cosine and both products are rounded to the type.
        let last = match x.dtype() {
            Dtype::Float16 => 2f64.powi(-10),
            Dtype::Bfloat16 => 2f64.powi(-7),
            _ => 2f64.powi(-23),
        };
        for (i, (got, (want, reach))) in
            numbers(&y)?.iter().zip(want.iter().zip(&reach)).enumerate()
        {
            let allowed = reach * 8.0 * 2f64.powi(-23) + reach.min(16.0) * 2.0 * last;
            let error = (got - want).abs();
            assert!(error <= allowed, "{what}: {error:e} at {i} from f64, at most {allowed:e}");
        }
        Ok(y.size())
    }
}

fn number(value: i32) -> anyhow::Result<Array> {
    Ok(Array::scalar(value)?)
}

#[test]
fn parameters_in_every_type() -> Checked {
    each_device(|device| {
        let mut compared = 0;
        for dtype in FLOATS {
            for (dims, features) in [(2, 2), (4, 6), (64, 64), (32, 80), (30, 33), (2, 7)] {
                let periods: Vec<f32> = (0..dims / 2).map(|i| 1.0 + (i * i) as f32 / 3.0).collect();
                let freqs = Array::from_slice(&periods, &[dims / 2])?;
                for traditional in [false, true] {
                    for (base, freqs) in
                        [(Some(1e4), None), (Some(5e5), None), (None, Some(&freqs))]
                    {
                        for (scale, offset) in [(1.0, 0), (0.25, 7), (-1.5, -3), (0.0, 5)] {
                            let offset = &number(offset)?;
                            let call = Call { dims, traditional, base, scale, offset, freqs };
                            for shape in [[2, 3, 5, features], [1, 1, 1, features]] {
                                let x = random(&shape, dtype, 1)?;
                                let what = format!(
                                    "{dtype} {shape:?} dims {dims} traditional {traditional} \
                                     base {base:?} scale {scale} offset {offset}"
                                );
                                compared += call.check(device, &x, &what)?;
                            }
                        }
                    }
                }
            }
        }
        println!("{device:?}: {compared} elements compared");
        Ok(())
    })
}

const PLAIN: (i32, bool, Option<f32>, f32) = (8, false, Some(1e4), 1.0);

fn plain(offset: &Array, traditional: bool) -> Call<'_> {
    let (dims, _, base, scale) = PLAIN;
    Call { dims, traditional, base, scale, offset, freqs: None }
}

#[test]
fn ranks_and_empty_axes() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            for traditional in [false, true] {
                for shape in [&[2, 5, 8][..], &[2, 3, 5, 10], &[2, 3, 2, 5, 8], &[1, 2, 1, 2, 3, 8]]
                {
                    let what = format!("{dtype} {shape:?}");
                    let x = random(shape, dtype, 2)?;
                    plain(&number(4)?, traditional).check(device, &x, &what)?;
                    if shape[0] == 2 {
                        let each = Array::from_slice(&[9i32, 0], &[2])?;
                        plain(&each, traditional).check(device, &x, &what)?;
                    }
                }
                for shape in [[0, 3, 5, 8], [2, 0, 5, 8], [2, 3, 0, 8]] {
                    let y = plain(&number(4)?, traditional).ours(&random(&shape, dtype, 2)?)?;
                    assert_eq!((y.shape(), numbers(&y)?.len()), (&shape[..], 0));
                }
            }
        }
        Ok(())
    })
}

#[test]
fn offsets_of_every_kind() -> Checked {
    let each = [0, 1000, -3, 41];
    let kinds = [Dtype::Int8, Dtype::Int16, Dtype::Int32, Dtype::Int64, Dtype::Uint32];
    each_device(|device| {
        for dtype in FLOATS {
            for time in [1, 2, 9] {
                let x = random(&[4, 3, time, 8], dtype, 3)?;
                let check = |offset: &Array, what: &str| {
                    let what = format!("{dtype} time {time} {what}");
                    plain(offset, true).check(device, &x, &what)?;
                    plain(offset, false).check(device, &x, &what)
                };
                for kind in kinds {
                    let small = Array::from_slice(&[0i32, 100, 3, 41], &[4])?.astype(kind)?;
                    check(&small, kind.name())?;
                    check(&small.slice(&[&(1..2)])?, "one element")?;
                    check(&small.slice(&[&(1..2)])?.squeeze(&[0])?, "a scalar")?;
                }
                let each = Array::from_slice(&each, &[4])?;
                check(&each, "one each")?;
                check(&each.slice(&[&(.., -1)])?, "backwards")?;
                check(&each.slice(&[&(..1)])?.broadcast_to(&[4])?, "broadcast")?;
                check(&each.add(1)?, "computed")?;
            }
        }
        Ok(())
    })
}

#[test]
fn a_number_is_a_scalar_array() -> Checked {
    let x = random32(&[2, 3, 5, 8], 4)?;
    let (dims, traditional, base, scale) = PLAIN;
    let number = ops::rope(&x, dims, traditional, base, scale, 5, None)?;
    let array = &Array::scalar(5)?;
    let array = ops::rope(&x, dims, traditional, base, scale, Offset::Each(array), None)?;
    assert_same(&number, &array, "offset")?;
    Ok(())
}

#[test]
fn far_positions() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            for offset in [100_000, -100_000, 1 << 24, i32::MAX - 4] {
                for base in [1e4, 5e5] {
                    let offset = &number(offset)?;
                    let call = Call { base: Some(base), ..plain(offset, false) };
                    let x = random(&[1, 2, 3, 8], dtype, 5)?;
                    call.check(device, &x, &format!("{dtype} at {offset}"))?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn layouts_of_x_and_freqs() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            for shape in [&[2, 3, 8][..], &[2, 3, 5, 8], &[3, 1, 1, 10]] {
                for layout in LAYOUTS {
                    for traditional in [false, true] {
                        let what = format!("{dtype} {shape:?} {layout:?}");
                        let offset = &number(2)?;
                        let call = plain(offset, traditional);
                        call.check(device, &layout.make(shape, dtype, 6)?, &what)?;
                        let evaluated = layout.make(shape, dtype, 6)?;
                        evaluated.eval()?;
                        call.check(device, &evaluated, &what)?;
                        let freqs = layout.make(&[2, 4], dtype, 7)?.abs()?.add(0.5)?;
                        let freqs = freqs.slice(&[&(1..2)])?.squeeze(&[0])?;
                        let call = Call { base: None, freqs: Some(&freqs), ..call };
                        call.check(device, &layout.make(shape, dtype, 6)?, &what)?;
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn heads_after_time_as_models_have_them() -> Checked {
    // [batch, time, heads, features] with the middle axes exchanged.
    each_device(|device| {
        for dtype in FLOATS {
            for time in [1, 6] {
                let x = random(&[2, time, 3, 8], dtype, 8)?.transpose(&[0, 2, 1, 3])?;
                plain(&number(9)?, false).check(device, &x, "exchanged")?;
            }
        }
        Ok(())
    })
}

#[test]
fn the_gradient_turns_back() -> Checked {
    each_device(|device| {
        for traditional in [false, true] {
            let x = Layout::Transposed.make(&[2, 3, 5, 10], Dtype::Float32, 9)?;
            let offset = &Array::from_slice(&[3i32, 90], &[2])?;
            let call = plain(offset, traditional);
            let y = call.ours(&x)?;
            let back = transforms::vjp(|x| Ok(vec![call.ours(&x[0])?]), &[&x], &[&y])?.1;
            // Two rotations of a length of at most 6, four roundings each.
            assert_close(&numbers(&back[0])?, &numbers(&x)?, 6.0 * 8.0 * 6e-8, "there and back");
            let want = transforms::vjp(|x| Ok(vec![call.builtin(&x[0])?]), &[&x], &[&y])?.1;
            if follows_mlx_bit_for_bit(device) {
                assert_same(&back[0], &want[0], "MLX's vjp")?;
            }
        }
        Ok(())
    })
}

/// Equal in every bit where MLX runs what ours follows, else finite where MLX's is.
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
        let zero = Array::from_slice(&[0.0f32, 1.0, f32::INFINITY, f32::NAN], &[4])?;
        let offset = &number(1)?;
        for scale in [1.0, f32::INFINITY, f32::NAN, 1e38] {
            for (base, freqs) in [(Some(0.0), None), (Some(-1.0), None), (None, Some(&zero))] {
                let call = Call { base, freqs, scale, ..plain(offset, false) };
                let what = format!("base {base:?} scale {scale}");
                assert_degenerates_alike(device, call, &x, &what)?;
            }
        }
        let mut spoilt = values(48, 11, 1.0);
        (spoilt[3], spoilt[20], spoilt[41]) = (f32::NAN, f32::INFINITY, -f32::MAX);
        let x = Array::from_slice(&spoilt, &[1, 2, 3, 8])?;
        for traditional in [false, true] {
            assert_degenerates_alike(device, plain(offset, traditional), &x, "spoilt x")?;
        }
        Ok(())
    })
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once() -> Checked {
    let x = random32(&[1, 8, 16, 64], 1)?;
    x.eval()?;
    let moved = support::moved(|| ops::rope(&x, 64, false, Some(1e4), 1.0, 3, None))?;
    let bytes = x.nbytes() as u64;
    assert_eq!((moved[0].arrays[0], moved[0].written()), ([bytes, 0, bytes], bytes));
    support::report_traffic("rope", &moved[..1], x.nbytes() * 2)
}
