//! Operations on AMX's tile registers, in inline assembly, because Rust has no stable intrinsics
//! for them.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::super::LANES;
use super::super::registers::Avx512;
use super::super::tiles::{DigitTiles, PIECES, TILE_PANELS, TILE_ROWS, TileProduct, Tiles};

/// Whether this processor multiplies tiles of bf16 and of bytes, and the operating system lets this
/// process use them. The first call asks the system; later calls return the stored answer.
pub fn is_permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| has_tiles() && ask_kernel())
}

fn has_tiles() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    let wanted = BF16 | TILE | INT8;
    // SAFETY: every x86-64 processor has `cpuid`, and leaf 7 is read only if leaf 0 reports it.
    #[allow(unused_unsafe, reason = "Rust 1.89 marks the intrinsic unsafe")]
    unsafe {
        __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & wanted == wanted
    }
}

/// Requests permission to use the tile registers. Linux saves and restores them only for processes
/// that requested this permission.
#[cfg(target_os = "linux")]
fn ask_kernel() -> bool {
    const ARCH_PRCTL: u64 = 158;
    const REQUEST_PERMISSION: u64 = 0x1023; // ARCH_REQ_XCOMP_PERM
    const TILE_DATA: u64 = 18; // XFEATURE_XTILEDATA
    let result: i64;
    // SAFETY: the system call takes two numbers and does not touch the memory of the process. A
    // kernel that does not know the request returns an error.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn ask_kernel() -> bool {
    false
}

/// The configuration of the tile registers. Registers 0 to 3 hold sums, 4 and 5 hold tiles of one
/// factor, and 6 and 7 hold tiles of the other factor.
#[repr(C, align(64))]
struct Layout {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Moves the four tiles of sums of a product between memory and tile registers 0 to 3. `$line` are
/// the instructions. The compiler does not use tile registers, so they keep the sums until the next
/// `asm!` block.
macro_rules! move_sums {
    ($product:expr, [$($line:literal)*]) => {
        asm!(
            $($line,)*
            sums = in(reg) $product.sums,
            next_sums = in(reg) $product.sums.wrapping_add(LANES * $product.sums_stride),
            sums_bytes = in(reg) size_of::<f32>() * $product.sums_stride,
            options(nostack),
        )
    };
}

/// Multiplies the two loaded tiles of weights by the next tile of each panel.
macro_rules! piece {
    () => {
        concat!(
            "tileloadd tmm6, [{x} + {line}]\n",
            "tileloadd tmm7, [{next_x} + {line}]\n",
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            "tdpbf16ps tmm1, tmm4, tmm7\n",
            "tdpbf16ps tmm2, tmm5, tmm6\n",
            "tdpbf16ps tmm3, tmm5, tmm7\n",
            "add {x}, {x_bytes}\n",
            "add {next_x}, {x_bytes}",
        )
    };
}

/// Multiplies a tile of digits (signed bytes of x) by a tile of weights. With `two`, adds the
/// product of the next two tiles. Leaves the sums in `$sums`, and advances to the next product.
macro_rules! digits {
    ($two:tt, $sums:literal, $x:literal, $w:literal) => {
        concat!(
            concat!("tilezero ", $sums, "\n"),
            concat!("tileloadd ", $w, ", [{w} + {line}]\n"),
            concat!("tileloadd ", $x, ", [{x} + {x_stride}]\n"),
            concat!("tdpbsud ", $sums, ", ", $x, ", ", $w, "\n"),
            digits!(@ $two, $sums, $x, $w),
            "add {x}, {x_next}\n",
            "lea {w}, [{w} + 4*{w_next}]",
        )
    };
    (@ one, $sums:literal, $x:literal, $w:literal) => {
        ""
    };
    (@ two, $sums:literal, $x:literal, $w:literal) => {
        concat!(
            concat!("tileloadd ", $w, ", [{w} + {line} + 1024]\n"),
            concat!("tileloadd ", $x, ", [{x} + {x_stride} + 64]\n"),
            concat!("tdpbsud ", $sums, ", ", $x, ", ", $w, "\n"),
        )
    };
}

/// Computes the products that [`DigitTiles`] describes. Four products run at a time, so that their
/// latencies overlap.
///
/// # Safety
/// The contract of [`F32x16::tiles_of_digits`](super::super::F32x16::tiles_of_digits) applies.
#[inline(always)]
pub unsafe fn tiles_of_digits(product: &DigitTiles) {
    let DigitTiles { x, x_stride, x_next, w, w_next, words, step, count, sums, .. } = *product;
    macro_rules! run {
        ($two:tt) => {
            asm!(
                "sub {count}, 4",
                "jb 3f",
                "2:",
                digits!($two, "tmm0", "tmm4", "tmm6"),
                digits!($two, "tmm1", "tmm5", "tmm7"),
                digits!($two, "tmm2", "tmm4", "tmm6"),
                digits!($two, "tmm3", "tmm5", "tmm7"),
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 1024], tmm1",
                "tilestored [{sums} + {line} + 2048], tmm2",
                "tilestored [{sums} + {line} + 3072], tmm3",
                "add {sums}, 4096",
                "sub {count}, 4",
                "jae 2b",
                "3:",
                "test {count}, 2",
                "jz 4f",
                digits!($two, "tmm0", "tmm4", "tmm6"),
                digits!($two, "tmm1", "tmm5", "tmm7"),
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 1024], tmm1",
                "add {sums}, 2048",
                "4:",
                "test {count}, 1",
                "jz 5f",
                digits!($two, "tmm2", "tmm4", "tmm6"),
                "tilestored [{sums} + {line}], tmm2",
                "5:",
                x = inout(reg) x => _,
                x_stride = in(reg) x_stride,
                x_next = in(reg) x_next,
                w = inout(reg) w => _,
                w_next = in(reg) w_next,
                line = in(reg) size_of::<f32>() * LANES,
                count = inout(reg) count => _,
                sums = inout(reg) sums => _,
                options(nostack),
            )
        };
    }
    // SAFETY: the caller upholds the contract, and the level is `Amx`. No other code uses the tile
    // registers in between.
    unsafe { if words == step { run!(one) } else { run!(two) } }
}

impl<const BF16: bool> Tiles for Avx512<BF16> {
    #[inline(always)]
    unsafe fn begin_tiles([rows, step]: [usize; 2]) {
        debug_assert!((1..=LANES).contains(&step) && (1..=LANES).contains(&rows));
        let mut layout = Layout {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        layout.row_bytes[..8].fill(64);
        layout.rows[..6].fill(rows as u8);
        layout.row_bytes[4..6].fill(4 * step as u16);
        layout.rows[6..8].fill(step as u8);
        // SAFETY: the level is `Amx`; `ldtilecfg` reads this layout, which lives until after the
        // instruction.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const layout, options(nostack, readonly)) };
    }

    /// Clears the tile registers, so that the operating system need not save them.
    #[inline(always)]
    unsafe fn end_tiles() {
        // SAFETY: the level is `Amx`.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }

    /// Multiplies the rows of weights, two tiles at a time, by the tiles of two panels. Adds the
    /// products to four tiles of sums in tile registers, and stores these sums at the end. Treats
    /// subnormal numbers as zero. The weights stay in the level-one cache, because x, which
    /// comes from the second-level cache, does not replace them (`tileloaddt1`). The sums of the
    /// next two panels are prefetched, since the caller usually adds to them next.
    #[inline(always)]
    unsafe fn add_tiles_bf16(product: &TileProduct) {
        // SAFETY: the caller upholds the contract, and the level is `Amx`. No other code uses the
        // tile registers in between.
        unsafe {
            const _: () = assert!(TILE_ROWS == 2 * LANES && TILE_PANELS == 2);
            let TileProduct { w, w_stride, x, words, step, sums, sums_stride, fresh } = *product;
            if fresh {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    options(nostack),
                );
            } else {
                move_sums!(product, [
                    "tileloadd tmm0, [{sums} + {sums_bytes}]"
                    "tileloadd tmm1, [{sums} + {sums_bytes} + 64]"
                    "tileloadd tmm2, [{next_sums} + {sums_bytes}]"
                    "tileloadd tmm3, [{next_sums} + {sums_bytes} + 64]"
                ]);
            }
            asm!(
                "2:",
                "tileloadd tmm4, [{w} + {w_bytes}]",
                "tileloaddt1 tmm6, [{x} + {line}]",
                "tileloaddt1 tmm7, [{next_x} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{next_w} + {w_bytes}]",
                "prefetchw [{ahead}]",
                "prefetchw [{ahead} + 64]",
                "prefetchw [{ahead} + {sums_bytes}]",
                "prefetchw [{ahead} + {sums_bytes} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "lea {w}, [{w} + 4*{step}]",
                "lea {next_w}, [{next_w} + 4*{step}]",
                "add {x}, {x_bytes}",
                "add {next_x}, {x_bytes}",
                "lea {ahead}, [{ahead} + 2*{sums_bytes}]",
                "sub {words}, {step}",
                "jnz 2b",
                ahead = inout(reg) sums.wrapping_add(TILE_PANELS * LANES) => _,
                sums_bytes = in(reg) size_of::<f32>() * sums_stride,
                w = inout(reg) w => _,
                next_w = inout(reg) w.wrapping_add(LANES * w_stride) => _,
                w_bytes = in(reg) size_of::<f32>() * w_stride,
                x = inout(reg) x[0] => _,
                next_x = inout(reg) x[1] => _,
                x_bytes = in(reg) size_of::<f32>() * LANES * step,
                line = in(reg) size_of::<f32>() * LANES,
                step = in(reg) step,
                words = inout(reg) words => _,
                options(nostack),
            );
            move_sums!(product, [
                "tilestored [{sums} + {sums_bytes}], tmm0"
                "tilestored [{sums} + {sums_bytes} + 64], tmm1"
                "tilestored [{next_sums} + {sums_bytes}], tmm2"
                "tilestored [{next_sums} + {sums_bytes} + 64], tmm3"
            ]);
        }
    }

    #[inline(always)]
    unsafe fn tiles_of_pieces(product: &TileProduct) {
        const _: () = assert!(PIECES == 3);
        let TileProduct { w, w_stride, x, words, step, sums, sums_stride, .. } = *product;
        // SAFETY: as in `add_tiles_bf16`.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{w} + {w_bytes}]",
                "tileloadd tmm5, [{next_w} + {w_bytes}]",
                piece!(),
                piece!(),
                piece!(),
                "lea {w}, [{w} + 4*{step}]",
                "lea {next_w}, [{next_w} + 4*{step}]",
                "sub {words}, {step}",
                "jnz 2b",
                "tilestored [{sums} + {sums_bytes}], tmm0",
                "tilestored [{sums} + {sums_bytes} + 64], tmm1",
                "tilestored [{next_sums} + {sums_bytes}], tmm2",
                "tilestored [{next_sums} + {sums_bytes} + 64], tmm3",
                sums = in(reg) sums,
                next_sums = in(reg) sums.wrapping_add(LANES * sums_stride),
                sums_bytes = in(reg) size_of::<f32>() * sums_stride,
                w = inout(reg) w => _,
                next_w = inout(reg) w.wrapping_add(LANES * w_stride) => _,
                w_bytes = in(reg) size_of::<f32>() * w_stride,
                x = inout(reg) x[0] => _,
                next_x = inout(reg) x[1] => _,
                x_bytes = in(reg) size_of::<f32>() * LANES * step,
                line = in(reg) size_of::<f32>() * LANES,
                step = in(reg) step,
                words = inout(reg) words => _,
                options(nostack),
            );
        }
    }
}
