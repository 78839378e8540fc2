//! Unpacks blocks that are a single group with a float16 scale, which needs no table or fit.

use half::f16;

use super::{BlockType, GROUP, Part, write_float};

impl BlockType {
    /// Does the work of [`fill`](Self::fill) for the types whose blocks are one group with a
    /// float16 scale. It reads only the bytes of each block that the part needs.
    pub(super) fn fill_plain(self, part: Part, blocks: &[u8], out: &mut [u8]) {
        let codes = if self == Self::Q4_1 { 4 } else { 2 };
        let outs = out.chunks_exact_mut(self.group_bytes(part));
        for (block, out) in blocks.chunks_exact(self.bytes()).zip(outs) {
            match part {
                Part::Scales => out.copy_from_slice(&block[..2]),
                Part::Biases if self == Self::Q4_1 => out.copy_from_slice(&block[2..4]),
                Part::Biases => {
                    let zero = (1 << (self.bits() - 1)) as f32;
                    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                    write_float(-zero * scale, out);
                }
                _ if self == Self::Q8_0 => {
                    for (out, code) in out.iter_mut().zip(&block[codes..]) {
                        *out = code ^ 0x80; // adds 128
                    }
                }
                _ => {
                    // A byte has the codes of a weight and of the sixteenth weight after it.
                    let (low, high) = out.split_at_mut(GROUP / 4);
                    for ((pair, low), high) in block[codes..].chunks_exact(2).zip(low).zip(high) {
                        *low = pair[0] & 15 | pair[1] << 4;
                        *high = pair[0] >> 4 | pair[1] & 0xf0;
                    }
                }
            }
        }
    }
}
