//! How MLX dispatches an op: the kernel, the buffers and the grid. The module `ours` does this for
//! `mlx-primitives`.

use half::{bf16, f16};
use metal_sim::{Buffer, Dispatch, Kernel, Report, Schedule};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    pub const ALL: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
        }
    }

    pub fn size(self) -> usize {
        if self == Dtype::F32 { 4 } else { 2 }
    }

    /// `count` numbers between -2 and 2, the same in every call.
    pub fn values(self, count: usize) -> Vec<u8> {
        let value = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 252.0 - 2.0;
        let bytes = |i: usize| match self {
            Dtype::F32 => value(i).to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(value(i)).to_le_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(value(i)).to_le_bytes().to_vec(),
        };
        (0..count).flat_map(bytes).collect()
    }

    pub fn decode(self, bytes: &[u8]) -> Vec<f64> {
        let number = |b: &[u8]| match self {
            Dtype::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            Dtype::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
            Dtype::Bf16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        };
        bytes.chunks(self.size()).map(number).collect()
    }
}

/// One dispatch, in full.
#[derive(Clone, Default)]
pub struct Launch {
    pub kernel: String,
    pub inputs: Vec<(u32, Vec<u8>)>,
    /// The index and the size of the output.
    pub out: (u32, usize),
    /// The indices of buffers that hold tensors. The other buffers are parameters.
    pub tensors: Vec<u32>,
    pub scratch: usize,
    pub threads: [u32; 3],
    pub group: [u32; 3],
}

impl Launch {
    pub fn run(&self, kernel: &Kernel, schedule: Schedule) -> (Vec<u8>, Report) {
        let mut out = vec![0u8; self.out.1];
        let mut dispatch = Dispatch::new(kernel)
            .buffer(self.out.0, Buffer::output(&mut out))
            .threads(self.threads, self.group)
            .schedule(schedule);
        for (index, bytes) in &self.inputs {
            dispatch = dispatch.buffer(*index, Buffer::input(bytes));
        }
        if self.scratch > 0 {
            dispatch = dispatch.threadgroup(0, self.scratch);
        }
        let report = dispatch.run().unwrap();
        let name = kernel.name();
        assert!(report.faults.is_empty(), "{name}: {:#?}", report.faults);
        (out, report)
    }
}

pub fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn longs(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub const EPS: f32 = 1e-5;

/// MLX's launch of a row kernel: one threadgroup per row, with `reads` elements per thread. With
/// `looped`, the kernel runs a loop with 1024 threads, the maximum of a threadgroup.
pub fn mlx_rows(rows: usize, axis: usize, reads: usize, looped: bool) -> ([u32; 3], [u32; 3]) {
    let threads = if looped { 1024 } else { axis.div_ceil(reads).next_multiple_of(32) as u32 };
    ([rows as u32 * threads, 1, 1], [threads, 1, 1])
}

pub fn mlx_softmax(dtype: Dtype, rows: usize, axis: usize) -> Launch {
    let looped = axis > 4096;
    let form = if looped { "looped" } else { "block" };
    let precise = if dtype == Dtype::F32 { "" } else { "precise_" };
    let (threads, group) = mlx_rows(rows, axis, 4, looped);
    let x = dtype.values(rows * axis);
    Launch {
        kernel: format!("{form}_softmax_{precise}{}", dtype.name()),
        out: (1, x.len()),
        inputs: vec![(0, x), (2, bytes(&[axis as u32]))],
        tensors: vec![0, 1],
        threads,
        group,
        ..Launch::default()
    }
}

pub fn mlx_rms_norm(dtype: Dtype, rows: usize, axis: usize) -> Launch {
    let looped = axis > 4096;
    let form = if looped { "_looped" } else { "" };
    let (threads, group) = mlx_rows(rows, axis, 4, looped);
    let x = dtype.values(rows * axis);
    let numbers = [EPS.to_bits(), axis as u32, 1].map(|word| bytes(&[word]));
    let mut inputs = vec![(0, x), (1, dtype.values(axis))];
    inputs.extend((3u32..).zip(numbers));
    Launch {
        kernel: format!("rms{form}{}", dtype.name()),
        out: (2, rows * axis * dtype.size()),
        inputs,
        tensors: vec![0, 1, 2],
        threads,
        group,
        ..Launch::default()
    }
}

/// A shape `[batch, heads, length, features]`. All features are rotated.
#[derive(Clone, Copy, Debug)]
pub struct RopeShape(pub [usize; 4]);

pub const LOG2_BASE: f32 = 13.287_712; // of MLX's usual base, 10000
pub const OFFSET: u32 = 7;

pub fn mlx_rope(dtype: Dtype, shape: RopeShape) -> Launch {
    let [batch, heads, length, features] = shape.0;
    let x = dtype.values(batch * heads * length * features);
    let single = length == 1;
    let base = (10, bytes(&[LOG2_BASE.to_bits()]));
    let mut inputs =
        vec![(2, bytes(&[OFFSET])), (3, bytes(&[1f32.to_bits()])), base, (0, x.clone())];
    let strides = [length * features, features, 1].map(|stride| stride as u64);
    let grid = if single {
        inputs.push((4, longs(&strides[..1])));
        [features / 2, batch * heads, 1]
    } else {
        let heads_word = bytes(&[heads as u32]);
        inputs.extend([(4, longs(&strides)), (5, longs(&strides)), (6, longs(&[0]))]);
        inputs.push((7, heads_word));
        [features / 2, length, batch * heads.div_ceil(4)]
    };
    let threads = grid.map(|size| size as u32);
    Launch {
        kernel: format!("rope_{}{}", if single { "single_" } else { "" }, dtype.name()),
        inputs,
        out: (1, x.len()),
        tensors: vec![0, 1],
        threads,
        group: mlx_block(threads),
        ..Launch::default()
    }
}

/// MLX's `get_block_dims`: doubles one side after another until there are 1024 threads.
fn mlx_block(grid: [u32; 3]) -> [u32; 3] {
    let mut block = [1u32; 3];
    loop {
        let before = block;
        for (side, size) in block.iter_mut().zip(grid) {
            if size >= 2 * *side {
                *side *= 2;
            }
            if before.iter().product::<u32>() == 1024 {
                return before;
            }
        }
        if block == before || block.iter().product::<u32>() >= 1024 {
            return block;
        }
    }
}
