//! Computes `act(x · wᵀ + bias) + residual`. In the order [`RowOrder::Tokens`], if neither x nor w
//! is stored transposed, the outputs are dot products, and the lanes of a vector run along a row.
//! In all other cases each lane is a different output.

pub mod arithmetic;
mod columns;
pub mod dense;
mod epilogue;
pub mod gemm;
pub mod gemv;
pub mod interleaved;
pub mod product;
mod several;
mod sums;
pub mod together;
mod weights;
pub mod workspace;

use super::Machine;
use super::activation::Activation;
use super::element::{Bf16, Element, F16, Float, with_element};
use super::row_order::{FEW_ROWS, RowOrder};
use super::simd::Level;
use arithmetic::{InBf16, InF32};
use dense::{Dense, Finish};
use interleaved::Factor;
use product::product;
use weights::Extents;

/// A call of [`linear`], on row-major buffers of one element type, except w.
pub struct LinearCall {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// `[m, k]`, or `[k, m]` if `turned`
    pub x: *const u8,
    pub turned: bool,
    /// `[n, k]`, or `[k, n]` if `columns`
    pub w: *const u8,
    /// The element type of w. It can be another type than the call's if the call's type is f32,
    /// and neither `columns` nor `turned` is set.
    pub of_w: Element,
    pub columns: bool,
    /// `[n]`, or null
    pub bias: *const u8,
    pub activation: Option<Activation>,
    /// `[m, n]`, or null; may be `out`
    pub residual: *const u8,
    pub order: RowOrder,
    /// `[m, n]`
    pub out: *mut u8,
}

/// Computes a product with sums in f32, and rounds once after each step: product, bias, activation,
/// residual.
///
/// # Safety
/// The buffers have the shapes of the fields of [`LinearCall`] and are aligned to the element.
/// `out` may be `residual`; it overlaps no other buffer.
pub unsafe fn linear(element: Element, call: &LinearCall) {
    let machine = Machine::current();
    // SAFETY: the caller's contract; this CPU has the instruction set of `machine`.
    unsafe {
        match call.of_w {
            same if same == element => with_element!(element, T => linear_on::<T>(machine, call)),
            Element::F16 => mixed_on::<F16>(machine, call),
            _ => mixed_on::<Bf16>(machine, call),
        }
    }
}

/// Multiplies an x of f32 with a w of another type. The results have the bits of a call whose w was
/// converted to f32.
///
/// # Safety
/// The contract of [`linear`] holds, `W` is the type of w, and x is f32.
pub unsafe fn mixed_on<W: Float>(machine: Machine, call: &LinearCall) {
    let extents = Extents { m: call.m, n: call.n, k: call.k };
    if extents.m == 0 || extents.n == 0 {
        return;
    }
    let (x, w) = (call.x.cast::<f32>(), call.w.cast::<W>());
    let finish = call.finish::<f32>();
    // SAFETY: the caller's contract.
    unsafe {
        if call.order.is_of_tokens(call.m) {
            return gemv::gemv(machine, extents, x, w, &finish);
        }
        let weights = Dense { w, extents, columns: false };
        let of_x = Extents { m: extents.n, n: extents.m, k: extents.k };
        let x = Dense { w: x, extents: of_x, columns: false };
        Factor::<InF32>::interleaved(&x, machine, 0..extents.m, &|x| {
            gemm::multiply(machine, x, extents.n, &weights, &finish);
        });
    }
}

impl LinearCall {
    fn finish<T: Float>(&self) -> Finish<T> {
        Finish {
            out: self.out.cast(),
            columns: self.n,
            bias: self.bias.cast(),
            activation: self.activation,
            residual: self.residual.cast(),
        }
    }
}

pub unsafe fn linear_on<T: Float>(machine: Machine, call: &LinearCall) {
    let extents = Extents { m: call.m, n: call.n, k: call.k };
    if extents.m == 0 || extents.n == 0 {
        return;
    }
    let finish = call.finish::<T>();
    let x = call.x.cast::<T>();
    // SAFETY: the caller's contract.
    unsafe {
        let tokens = call.order.is_of_tokens(call.m);
        let w = call.w.cast::<T>();
        if tokens && !call.columns && !call.turned {
            return gemv::gemv(machine, extents, x, w, &finish);
        }
        // The function `columns` adds up in the same order as `product` with f32 factors, so calls
        // with more rows can use `product`.
        if tokens && call.m <= FEW_ROWS && !call.turned {
            return columns::columns(machine, extents, x, w, &finish);
        }
        let of_x = Extents { m: extents.n, n: extents.m, k: extents.k };
        if const { T::IS_BF16 } && !tokens && machine.level.packs_bf16() {
            let weights = Dense::<Bf16> { w: call.w.cast(), extents, columns: call.columns };
            let x = Dense::<Bf16> { w: call.x.cast(), extents: of_x, columns: call.turned };
            return product::<InBf16, _>(machine, &x, extents.n, &weights, &finish);
        }
        let weights = Dense::<T> { w: call.w.cast(), extents, columns: call.columns };
        let x = Dense::<T> { w: x, extents: of_x, columns: call.turned };
        product::<InF32, _>(machine, &x, extents.n, &weights, &finish);
    }
}

impl Level {
    /// Whether this instruction set multiplies pairs of bf16 ([`InBf16`]) in one instruction, and
    /// saves time with it.
    pub fn dots_bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Level::Amx | Level::Avx512Bf16);
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// Whether this instruction set multiplies many rows of bf16 in the format [`InBf16`].
    pub fn packs_bf16(self) -> bool {
        self.dots_bf16() || self.multiplies_tiles()
    }

    /// Whether one instruction of this set multiplies bytes and adds up the products. On
    /// `avx2vnni`, only [`F32x16::add_pairs`](crate::simd::F32x16::add_pairs) uses it.
    pub fn dots_bytes(self) -> bool {
        #[cfg(target_arch = "aarch64")]
        return matches!(self, Level::I8mm | Level::Dotprod);
        #[cfg(target_arch = "x86_64")]
        return matches!(
            self,
            Level::Amx | Level::Avx512Vnni | Level::Avx512Bf16 | Level::Avx2Vnni
        );
        #[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
        return false;
    }

    /// Whether this instruction set adds up products of bytes in sixteen bits, which is enough for
    /// weights of at most six bits.
    pub fn adds_pairs_of_bytes(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Level::Avx512 | Level::Avx2);
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// Whether this instruction set multiplies bytes of x with weights of `bits` bits.
    pub fn multiplies_bytes(self, bits: u32) -> bool {
        self.dots_bytes() || self.adds_pairs_of_bytes() && bits <= 6
    }

    /// Whether this instruction set multiplies a few rows of 16-bit x with packed weights by
    /// integer arithmetic. The x86 processors with tiles add up products of bytes six times as fast
    /// as products of bf16 pairs. On ARM one instruction multiplies sixteen bytes or four f32
    /// numbers; no ARM processor was measured.
    pub fn adds_digits(self) -> bool {
        self.multiplies_tiles() || cfg!(target_arch = "aarch64") && self.dots_bytes()
    }

    /// Whether this instruction set multiplies tiles
    /// ([`TileProduct`](crate::simd::tiles::TileProduct)).
    pub fn multiplies_tiles(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Level::Amx | Level::ScalarTiles);
        #[cfg(not(target_arch = "x86_64"))]
        return self == Level::ScalarTiles;
    }
}
