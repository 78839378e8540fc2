//! Kernels, the vector trait that their bodies are generic over, and functions that compile the
//! bodies for each instruction set (a "level").

use super::dots::{self, byte_fields_by_shifts, dot_bf16_by_halves, dot_bytes_in_turn};
use super::lanes::{LANES, Lanes};
use super::registers::Scalar;
#[cfg(target_arch = "x86_64")]
use super::registers::{Avx2, Avx512};
#[cfg(target_arch = "aarch64")]
use super::registers::{DOTPROD, I8MM, NO_DOTS, Neon};
use super::{floats, shuffles, stream, tiles, transpose};

/// [`Lanes`] with more operations. The default code of an operation serves instruction sets that
/// have no instruction for it.
pub trait F32x16: Lanes + tiles::Tiles + Parts {
    /// Whether kernels mask packed numbers and convert them to floats without a shift. Such a float
    /// is the number times a power of two. Otherwise each number takes a shift instruction.
    const IN_PLACE: bool = false;
    /// Whether [`dot_bf16`](Self::dot_bf16) is a single instruction on this level.
    const DOTS_BF16: bool = false;
    /// Each lane of `a` and `b` is a pair of bf16. Adds the two products of the pairs to each lane
    /// of `self`, first the product of the upper halves.
    #[inline(always)]
    fn dot_bf16(self, a: Self::Int, b: Self::Int) -> Self {
        dot_bf16_by_halves(self, a, b)
    }
    /// Applies a function to a block. The function is inlined, except on the portable level.
    #[inline(always)]
    fn call<F: Function>(x: Self) -> Self {
        F::of(x)
    }
    /// Transposes sixteen blocks: block i of the result has lane i of every block.
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        transpose::by_memory(rows)
    }
    /// Transposes the sixteen words of each row that are `at` bytes after its address. Writes word
    /// i of all rows to the block at `to + 16 * i`. With `NIBBLES` a word is eight 4-bit numbers,
    /// and two blocks are written: the numbers with even indices, and the numbers with odd indices,
    /// in bytes.
    /// # Safety
    /// The words are readable, and sixteen or 32 blocks are writable.
    #[inline(always)]
    unsafe fn transpose_words<const NIBBLES: bool>(
        rows: &[*const u8; LANES],
        at: usize,
        to: *mut f32,
    ) {
        let (mut words, mut to) = ([Self::splat(0.0); LANES], to);
        // SAFETY: the caller upholds the contract.
        unsafe {
            for (word, row) in words.iter_mut().zip(rows) {
                *word = Self::load(row.wrapping_add(at).cast());
            }
            for word in Self::transpose(words) {
                if NIBBLES {
                    let codes = word.to_bits();
                    Self::from_bits(Self::byte_fields(codes, 0, 4)).store(to);
                    Self::from_bits(Self::byte_fields(codes, 4, 4)).store(to.wrapping_add(LANES));
                    to = to.wrapping_add(2 * LANES);
                } else {
                    word.store(to);
                    to = to.wrapping_add(LANES);
                }
            }
        }
    }
    /// Lane i is `blocks[i].reduce_add()`.
    #[inline(always)]
    fn reduce_add_each(blocks: [Self; LANES]) -> Self {
        transpose::reduce_each::<Self, false>(blocks)
    }
    /// Lane i is `blocks[i].reduce_max()`.
    #[inline(always)]
    fn reduce_max_each(blocks: [Self; LANES]) -> Self {
        transpose::reduce_each::<Self, true>(blocks)
    }
    /// Like [`load_stream`](Self::load_stream), for numbers of 20 or 24 bits.
    /// # Safety
    /// `from` is readable for `2 * BITS` bytes.
    #[inline(always)]
    unsafe fn load_lanes<const BITS: usize>(from: *const u8) -> Self::Int {
        // SAFETY: the caller upholds the contract.
        unsafe { stream::lanes::<Self, BITS>(from) }
    }
    /// Loads sixteen `BITS`-bit numbers from a little-endian bit stream into the low bits of the
    /// lanes. The bits above a number are unspecified.
    /// # Safety
    /// `from` is readable for `2 * BITS <= 16` bytes.
    #[inline(always)]
    unsafe fn load_stream<const BITS: usize>(from: *const u8) -> Self::Int {
        // SAFETY: the caller upholds the contract.
        unsafe { stream::load::<Self, BITS>(from) }
    }
    /// Loads 64 numbers of 2, 3, 5 or 6 bits from a little-endian bit stream as bytes.
    /// # Safety
    /// `from` is readable for `8 * BITS` bytes.
    #[inline(always)]
    unsafe fn load_codes<const BITS: usize>(from: *const u8) -> Self::Int {
        let mut quarters = [Self::splat_int(0); 4];
        for (i, quarter) in quarters.iter_mut().enumerate() {
            // SAFETY: the caller upholds the contract.
            *quarter = unsafe { Self::load_stream::<BITS>(from.add(2 * BITS * i)) };
        }
        stream::bytes::<Self>(quarters, BITS)
    }
    /// Interleaves 64-bit words of `a` and `b`: the first result alternates their even words, and
    /// the second their odd words.
    #[inline(always)]
    fn zip_words(a: Self::Int, b: Self::Int) -> [Self::Int; 2] {
        shuffles::zip_words::<Self>(a, b)
    }
    /// Within each 128-bit quarter, the first result has the even lanes of `a` and then of `b`. The
    /// second result has the odd lanes.
    #[inline(always)]
    fn unzip_lanes(a: Self::Int, b: Self::Int) -> [Self::Int; 2] {
        shuffles::unzip_lanes::<Self>(a, b)
    }
    /// The first result has the even 128-bit quarters of `a`, then of `b`. The second result has
    /// the odd quarters.
    #[inline(always)]
    fn unzip_quarters(a: Self::Int, b: Self::Int) -> [Self::Int; 2] {
        shuffles::unzip_quarters::<Self>(a, b)
    }
    /// Computes the products that `product` describes, with tile instructions if the level has
    /// them.
    /// # Safety
    /// The pointers are valid for the data that the fields describe. On a level with tiles, the
    /// caller has called [`begin_tiles`](tiles::Tiles::begin_tiles) for tiles of this shape.
    #[inline(always)]
    unsafe fn tiles_of_digits(product: &tiles::DigitTiles) {
        let &tiles::DigitTiles { x_stride, rows, words, narrow, .. } = product;
        for index in 0..product.count {
            let sums = product.sums.wrapping_add(index * LANES * LANES);
            let w = product.w.wrapping_add(index * product.w_next);
            for row in (0..rows).step_by(tiles::DIGITS) {
                let x = product.x.wrapping_add(index * product.x_next + row * x_stride);
                let mut totals = [Self::splat_int(0); tiles::DIGITS];
                // SAFETY: the caller upholds the contract.
                unsafe {
                    for word in 0..words {
                        let w = Self::load(w.add(word * LANES)).to_bits();
                        for (digit, total) in totals.iter_mut().enumerate() {
                            let x = x.add(digit * x_stride + word * size_of::<f32>());
                            let x = Self::splat(x.cast::<f32>().read_unaligned()).to_bits();
                            *total = match narrow {
                                true => Self::dot_low_bytes(*total, w, x),
                                false => Self::dot_bytes(*total, w, x),
                            };
                        }
                    }
                    for (digit, total) in totals.into_iter().enumerate() {
                        Self::from_bits(total).store(sums.add((row + digit) * LANES));
                    }
                }
            }
        }
    }
    /// Moves `bits` bits of each byte, starting at the even bit `at`, to the low bits of the byte.
    #[inline(always)]
    fn byte_fields(a: Self::Int, at: u32, bits: u32) -> Self::Int {
        byte_fields_by_shifts::<Self>(a, at, bits)
    }
    /// Adds to each lane the four products of its bytes, which are unsigned in `a` and signed in
    /// `b`.
    #[inline(always)]
    fn dot_bytes(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        dot_bytes_in_turn::<Self>(sum, a, b)
    }
    /// Like [`dot_bytes`](Self::dot_bytes), for bytes of `a` below 128.
    #[inline(always)]
    fn dot_low_bytes(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        Self::dot_bytes(sum, a, b)
    }
    /// Whether [`add_pairs`](Self::add_pairs) uses instructions with 16-bit sums.
    const ADDS_PAIRS: bool = false;
    /// Adds products of bytes, unsigned in `a` and signed in `b`, to integer sums. With
    /// [`ADDS_PAIRS`](Self::ADDS_PAIRS), each pair of bytes has a 16-bit sum, and the caller
    /// ensures that no sum overflows. [`sums_of_pairs`](Self::sums_of_pairs) later adds up the sums
    /// of each lane.
    #[inline(always)]
    fn add_pairs(sums: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        Self::dot_bytes(sums, a, b)
    }
    /// Adds up the sums that [`add_pairs`](Self::add_pairs) computed within each lane.
    #[inline(always)]
    fn sums_of_pairs(a: Self::Int) -> Self::Int {
        a
    }
    /// Adds up the sums that [`add_pairs`](Self::add_pairs) computed within each 128-bit quarter.
    /// Lane i of a quarter of the result is of vector i. Sums of sixteen bits are in ±16383.
    #[inline(always)]
    fn sums_of_quarters([a, b, c, d]: [Self::Int; 4]) -> Self::Int {
        let [a, b] = Self::unzip_lanes(Self::sums_of_pairs(a), Self::sums_of_pairs(b));
        let [c, d] = Self::unzip_lanes(Self::sums_of_pairs(c), Self::sums_of_pairs(d));
        let [even, odd] = Self::unzip_lanes(Self::add_int(a, b), Self::add_int(c, d));
        Self::add_int(even, odd)
    }
    /// Packs lanes below `2^BITS` into the bit stream that [`load_stream`](Self::load_stream)
    /// reads.
    /// # Safety
    /// `to` is writable for `2 * BITS <= 16` bytes.
    #[inline(always)]
    unsafe fn store_stream<const BITS: usize>(a: Self::Int, to: *mut u8) {
        // SAFETY: the caller upholds the contract.
        unsafe { stream::store::<Self, BITS>(a, to) }
    }
    /// Converts the eight 4-bit numbers of each lane to bf16. Result n has numbers n and n + 4.
    #[inline(always)]
    fn nibble_pairs(words: Self::Int) -> [Self::Int; 4] {
        dots::nibble_pairs::<Self>(words)
    }
    /// Lane i is `from[i >> shift]`; `shift` is at least 1.
    /// # Safety
    /// `from[0]` to `from[7]` are readable.
    #[inline(always)]
    unsafe fn load_each(from: *const f32, shift: u32) -> Self {
        // SAFETY: the caller upholds the contract.
        transpose::from_lanes(|i| unsafe { *from.add(i >> shift) })
    }
    /// Lane i of the result is lane `index[i]` of `self`. Indices are below sixteen.
    #[inline(always)]
    fn permute(self, index: Self::Int) -> Self {
        let (lanes, index) = (transpose::lanes(self), transpose::lanes(Self::from_bits(index)));
        transpose::from_lanes(|i| lanes[index[i].to_bits() as usize % LANES])
    }
    /// Converts the low four bits of each lane to a float: sign, two bits of exponent, one of
    /// mantissa.
    #[inline(always)]
    fn low_fp4(a: Self::Int) -> Self {
        floats::low::<Self, 4>(a)
    }
    /// Converts the low eight bits of each lane to a float: sign, four bits of exponent, three of
    /// mantissa.
    #[inline(always)]
    fn low_fp8(a: Self::Int) -> Self {
        floats::low::<Self, 8>(a)
    }
}

/// A function that is applied to each lane.
pub trait Function {
    fn of<V: F32x16>(x: V) -> V;
}

/// A kernel, whose body is written once and is generic over the vector type.
///
/// The functions `on_…` are methods, so that the compiler compiles each one in the module of its
/// kernel. In one module for all kernels they would take minutes to compile.
pub trait Kernel: Sized {
    /// Whether the kernel is faster with the instructions that `avx512bf16` adds to `avx512`,
    /// because it converts to bf16 or multiplies bf16 pairs or bytes.
    const BF16: bool;
    /// Whether only levels with these instructions run the kernel: `avx512bf16`, `avx512vnni` and
    /// `amx`. In tests, the portable level runs it too.
    const ONLY_BF16: bool = false;
    /// Whether the kernel multiplies bytes, or words of codes. If so, `dotprod` and `i8mm` run it
    /// despite `ONLY_BF16`.
    const BYTES: bool = false;
    /// Whether `avx512`, `avx2vnni` and `avx2` run the kernel despite `ONLY_BF16`, because it
    /// multiplies bytes only by [`F32x16::add_pairs`].
    const PAIRS: bool = false;
    /// Whether `avx2vnni` compiles the kernel with AVX-VNNI, because it or a part of it multiplies
    /// bytes. Otherwise `avx2vnni` shares the kernel of `avx2`.
    const DOTS: bool = false;

    /// # Safety
    /// The kernel's pointers are valid for the work that it describes. Implementations are
    /// `#[inline(always)]`, so that the compiler uses the target features of the method below that
    /// calls them.
    unsafe fn run<V: F32x16>(self);

    /// # Safety
    /// The machine has the features, and the caller upholds the kernel's contract.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,gfni")]
    #[inline(never)]
    unsafe fn on_avx512_bf16(self) {
        // SAFETY: the caller upholds the kernel's contract.
        unsafe { self.run::<Avx512<true>>() }
    }

    /// # Safety
    /// The contract of [`on_avx512_bf16`](Self::on_avx512_bf16) applies.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    #[inline(never)]
    unsafe fn on_avx512(self) {
        // SAFETY: the caller upholds the kernel's contract.
        unsafe { self.run::<Avx512<false>>() }
    }

    /// # Safety
    /// The contract of [`on_avx512_bf16`](Self::on_avx512_bf16) applies.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline(never)]
    unsafe fn on_avx2(self) {
        // SAFETY: the caller upholds the kernel's contract.
        unsafe { self.run::<Avx2<false>>() }
    }

    /// # Safety
    /// The contract of [`on_avx512_bf16`](Self::on_avx512_bf16) applies.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    #[inline(never)]
    unsafe fn on_avx2_vnni(self) {
        // SAFETY: the caller upholds the kernel's contract.
        unsafe { self.run::<Avx2<true>>() }
    }

    /// # Safety
    /// The contract of [`on_neon`](Self::on_neon) applies.
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "neon,dotprod,i8mm")]
    #[inline(never)]
    unsafe fn on_i8mm(self) {
        // SAFETY: the caller upholds the kernel's contract.
        unsafe { self.run::<Neon<I8MM>>() }
    }

    /// # Safety
    /// The contract of [`on_neon`](Self::on_neon) applies.
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "neon,dotprod")]
    #[inline(never)]
    unsafe fn on_dotprod(self) {
        // SAFETY: the caller upholds the kernel's contract.
        unsafe { self.run::<Neon<DOTPROD>>() }
    }

    /// # Safety
    /// The machine has the features, and the caller upholds the kernel's contract.
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "neon")]
    #[inline(never)]
    unsafe fn on_neon(self) {
        // SAFETY: the caller upholds the kernel's contract.
        unsafe { self.run::<Neon<NO_DOTS>>() }
    }

    /// # Safety
    /// The caller upholds the kernel's contract.
    #[inline(never)]
    unsafe fn on_scalar(self) {
        // SAFETY: the caller upholds the kernel's contract.
        unsafe { self.run::<Scalar>() }
    }
}

/// Compiles parts of a kernel as separate functions, so that all their callers share one copy.
pub trait Parts {
    /// # Safety
    /// The machine has the features of the vectors, and the caller upholds the contract of the
    /// part.
    unsafe fn part<K: Kernel>(part: K);
}

#[cfg(target_arch = "x86_64")]
impl<const BF16: bool> Parts for Avx512<BF16> {
    #[inline(always)]
    unsafe fn part<K: Kernel>(part: K) {
        // SAFETY: the caller upholds the contract.
        unsafe { if BF16 { part.on_avx512_bf16() } else { part.on_avx512() } }
    }
}

#[cfg(target_arch = "x86_64")]
impl<const DOTS: bool> Parts for Avx2<DOTS> {
    #[inline(always)]
    unsafe fn part<K: Kernel>(part: K) {
        // SAFETY: the caller upholds the contract.
        unsafe { if DOTS && K::DOTS { part.on_avx2_vnni() } else { part.on_avx2() } }
    }
}

#[cfg(target_arch = "aarch64")]
impl<const DOTS: u8> Parts for Neon<DOTS> {
    #[inline(always)]
    unsafe fn part<K: Kernel>(part: K) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            match DOTS {
                I8MM if K::BYTES => part.on_i8mm(),
                DOTPROD if K::BYTES => part.on_dotprod(),
                _ => part.on_neon(),
            }
        }
    }
}

impl Parts for Scalar {
    #[inline(always)]
    unsafe fn part<K: Kernel>(part: K) {
        // SAFETY: the caller upholds the contract.
        unsafe { part.on_scalar() }
    }
}
