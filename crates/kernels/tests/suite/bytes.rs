//! Compares vector operations on bytes, and the transpose of a square, with loops, on every
//! instruction set ("level").

use mlx_primitives_kernels::simd::{F32x16, Kernel, LANES, Level};

const BYTES: usize = 4 * LANES;
/// The fields of a byte: the first bit of a field, and its number of bits.
const FIELDS: [(u32, u32); 7] = [(0, 2), (2, 2), (4, 2), (6, 2), (0, 4), (4, 4), (2, 4)];

/// Computes the byte fields of the first vector, and its dot products with the second vector. For
/// `low_dots`, the highest bit of each byte of the first vector is cleared.
struct Bytes<'a> {
    vectors: &'a [[u8; BYTES]; 2],
    fields: &'a mut [[u8; BYTES]; FIELDS.len()],
    dots: &'a mut [i32; LANES],
    low_dots: &'a mut [i32; LANES],
}

impl Kernel for Bytes<'_> {
    const BF16: bool = true;
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // SAFETY: every array has the length of a vector; `load` and `store` accept any bit
        // pattern.
        unsafe {
            let a = V::load(self.vectors[0].as_ptr().cast()).to_bits();
            let b = V::load(self.vectors[1].as_ptr().cast()).to_bits();
            for (to, (at, bits)) in self.fields.iter_mut().zip(FIELDS) {
                V::from_bits(V::byte_fields(a, at, bits)).store(to.as_mut_ptr().cast());
            }
            let dots = V::dot_bytes(V::splat_int(7), a, b);
            V::from_bits(dots).store(self.dots.as_mut_ptr().cast());
            let low = V::and_int(a, V::splat_int(0x7f7f_7f7f));
            let dots = V::dot_low_bytes(V::splat_int(-7), low, b);
            V::from_bits(dots).store(self.low_dots.as_mut_ptr().cast());
        }
    }
}

fn random_bytes() -> impl FnMut() -> u8 {
    let mut state = 1u32;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    }
}

#[test]
fn fields_and_products_of_bytes() {
    let mut next = random_bytes();
    for level in Level::available() {
        for round in 0..100 {
            let mut vectors = [[0; BYTES]; 2];
            vectors.as_flattened_mut().iter_mut().for_each(|byte| {
                *byte = [next(), 0, 0x7f, 0x80, 0xff]
                    [if round % 2 == 0 { 0 } else { usize::from(next() % 5) }];
            });
            let mut fields = [[0; BYTES]; FIELDS.len()];
            let [mut dots, mut low_dots] = [[0; LANES]; 2];
            let kernel = Bytes {
                vectors: &vectors,
                fields: &mut fields,
                dots: &mut dots,
                low_dots: &mut low_dots,
            };
            // SAFETY: the arrays have the length of a vector.
            unsafe { level.run(kernel) };

            let [a, b] = vectors;
            for ((at, bits), fields) in FIELDS.into_iter().zip(&fields) {
                let want = a.map(|byte| (byte >> at) & ((1 << bits) - 1));
                assert_eq!(fields, &want, "{level:?}: {bits} bits from {at}");
            }
            for lane in 0..LANES {
                let products = |mask: u8| -> i32 {
                    let bytes = 4 * lane..4 * lane + 4;
                    bytes.map(|i| i32::from(a[i] & mask) * i32::from(b[i] as i8)).sum()
                };
                assert_eq!(dots[lane], 7 + products(0xff), "{level:?}: lane {lane}");
                assert_eq!(low_dots[lane], products(0x7f) - 7, "{level:?}: lane {lane}, low");
            }
        }
    }
}

/// Adds two products of bytes by `add_pairs`, and then the sums of pairs. Codes have six bits, so
/// that sums of sixteen bits have room for them.
struct Pairs<'a> {
    codes: &'a [[u8; BYTES]; 2],
    x: &'a [[u8; BYTES]; 2],
    to: &'a mut [i32; LANES],
}

impl Kernel for Pairs<'_> {
    const BF16: bool = true;
    const BYTES: bool = true;
    const PAIRS: bool = true;
    const DOTS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let mut sums = V::splat_int(0);
        // SAFETY: every array has the length of a vector; `load` and `store` accept any bit
        // pattern.
        unsafe {
            for (codes, x) in self.codes.iter().zip(self.x) {
                let codes = V::load(codes.as_ptr().cast()).to_bits();
                sums = V::add_pairs(sums, codes, V::load(x.as_ptr().cast()).to_bits());
            }
            V::from_bits(V::sums_of_pairs(sums)).store(self.to.as_mut_ptr().cast());
        }
    }
}

#[test]
fn sums_of_pairs_of_bytes() {
    let mut next = random_bytes();
    for level in Level::available() {
        for round in 0..100 {
            let (mut codes, mut x) = ([[63; BYTES]; 2], [[0x81; BYTES]; 2]);
            if round > 0 {
                codes.as_flattened_mut().iter_mut().for_each(|byte| *byte = next() % 64);
                x.as_flattened_mut().iter_mut().for_each(|byte| *byte = next());
            }
            let mut to = [0; LANES];
            // SAFETY: the arrays have the length of a vector.
            unsafe { level.run(Pairs { codes: &codes, x: &x, to: &mut to }) };
            for (lane, got) in to.into_iter().enumerate() {
                let products = (0..2).flat_map(|word| {
                    let (codes, x) = (&codes[word], &x[word]);
                    (4 * lane..4 * lane + 4).map(|i| i32::from(codes[i]) * i32::from(x[i] as i8))
                });
                assert_eq!(got, products.sum::<i32>(), "{level:?}: lane {lane}");
            }
        }
    }
}

/// A kernel that transposes a square of sixteen by sixteen floats in place.
struct Transpose<'a>(&'a mut [[f32; LANES]; LANES]);

impl Kernel for Transpose<'_> {
    const BF16: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let mut rows = [V::splat(0.0); LANES];
        // SAFETY: every row has the length of a vector.
        unsafe {
            for (row, from) in rows.iter_mut().zip(self.0.iter()) {
                *row = V::load(from.as_ptr());
            }
            for (row, to) in V::transpose(rows).into_iter().zip(self.0) {
                row.store(to.as_mut_ptr());
            }
        }
    }
}

#[test]
fn squares_are_transposed() {
    for level in Level::available() {
        let mut square = [[0.0; LANES]; LANES];
        for (i, at) in square.as_flattened_mut().iter_mut().enumerate() {
            *at = i as f32;
        }
        // SAFETY: the square has sixteen rows of the length of a vector.
        unsafe { level.run(Transpose(&mut square)) };
        for (i, got) in square.as_flattened().iter().enumerate() {
            let want = (i % LANES * LANES + i / LANES) as f32;
            assert_eq!(*got, want, "{level:?}: {i}");
        }
    }
}
