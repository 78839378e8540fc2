//! Arrays that are read from a file, or from its bytes in memory, when they are used.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::array::Array;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::bridge::ffi;
use mlx_primitives_kernels as cpu;
use mlx_primitives_kernels::ggml_blocks::{BlockType, Part};

/// The place of a file's bytes.
pub(super) enum Source {
    /// In an open file, which stays readable when its name is removed.
    File { file: File, path: PathBuf },
    /// In memory.
    Bytes(Vec<u8>),
}

/// How the elements are stored.
#[derive(Clone, Copy)]
enum Form {
    /// As in memory.
    Plain,
    /// As bytes, 0 for false and, in valid files, 1 for true.
    Bool,
    /// As blocks of packed weights. The array is one part of each block, such as the scales.
    Blocks(BlockType, Part),
}

/// The place of one tensor in a file.
pub struct Stored {
    source: Arc<Source>,
    tensor: String,
    offset: u64,
    form: Form,
    /// The number of bytes before the array's first element, counted as in memory, not in the file.
    skipped: usize,
    /// The runs of contiguous elements that make up the array; `None` if it is one run.
    runs: Option<Runs>,
}

/// Runs of elements at equal distances, such as some columns of all rows. Bytes are as in memory.
#[derive(Clone, Copy)]
struct Runs {
    /// The bytes of a run.
    length: usize,
    /// The bytes from the start of a run to the start of the next one.
    pitch: usize,
}

impl Stored {
    /// A lazy array of the elements at `offset` of `source`.
    pub(super) fn array(
        source: &Arc<Source>,
        tensor: String,
        offset: u64,
        shape: &[i32],
        dtype: Dtype,
    ) -> Result<Array> {
        let form = if dtype == Dtype::Bool { Form::Bool } else { Form::Plain };
        let stored =
            Self { source: Arc::clone(source), tensor, offset, form, skipped: 0, runs: None };
        Array::from_bridge(ffi::stored(Box::new(stored), shape, dtype.into()))
    }

    /// A lazy array of one part, such as the scales, of the blocks at `offset`. `shape` is the
    /// shape of the weights in the file; its last extent is a multiple of a block's number of
    /// weights.
    pub(super) fn unpacked(
        source: &Arc<Source>,
        tensor: &str,
        offset: u64,
        shape: &[i32],
        kind: BlockType,
        part: Part,
    ) -> Result<Array> {
        let (dtype, size) = match part {
            Part::Codes | Part::OwnCodes => (Dtype::Uint32, 4),
            Part::OwnScales => (Dtype::Uint8, 1),
            Part::Scales | Part::Biases if kind.has_f16_scales() => (Dtype::Float16, 2),
            Part::Scales | Part::Biases => (Dtype::Float32, 4),
        };
        let mut shape = shape.to_vec();
        if let Some(last) = shape.last_mut() {
            *last = *last / kind.weights() as i32 * (kind.part_bytes(part) / size) as i32;
        }
        let form = Form::Blocks(kind, part);
        let (source, tensor) = (Arc::clone(source), tensor.to_owned());
        let stored = Self { source, tensor, offset, form, skipped: 0, runs: None };
        Array::from_bridge(ffi::stored(Box::new(stored), &shape, dtype.into()))
    }

    /// Whether the array's elements are one run, and `bytes` is a multiple of `unit()`, so that any
    /// piece of that many bytes can be read separately.
    pub fn divides(&self, bytes: usize) -> bool {
        self.runs.is_none() && bytes.is_multiple_of(self.unit())
    }

    /// Selects bytes `start` to `end` of every `pitch` bytes. If `pitch` is 0, selects bytes
    /// `start` to `end` once. [`divides`](Self::divides) must be true for all three numbers.
    pub fn runs(&self, start: usize, end: usize, pitch: usize) -> Box<Self> {
        Box::new(Self {
            source: Arc::clone(&self.source),
            tensor: self.tensor.clone(),
            skipped: self.skipped + start,
            runs: (end - start < pitch).then_some(Runs { length: end - start, pitch }),
            ..*self
        })
    }

    /// Elements `range` of an axis of an array. If the array is contiguous in its file and not yet
    /// read, and the range begins and ends at the bounds of blocks, only these elements are read.
    pub fn part(whole: &Array, axis: usize, range: &Range<i32>) -> Result<Array> {
        Array::from_bridge(ffi::stored_part(whole.raw(), axis, range.start, range.end))
    }

    /// The smallest number of this array's bytes that can be read: its part of a block, or 1 byte.
    fn unit(&self) -> usize {
        match self.form {
            Form::Blocks(kind, part) => kind.part_bytes(part),
            Form::Plain | Form::Bool => 1,
        }
    }

    /// A separate handle of the same elements.
    pub fn copy(&self) -> Box<Self> {
        Box::new(Self { source: Arc::clone(&self.source), tensor: self.tensor.clone(), ..*self })
    }

    /// Fills `bytes` with the elements. An error names the file and the tensor.
    pub fn read(&self, bytes: &mut [u8]) -> Result<()> {
        Self::read_all(&[self], &mut [bytes])
    }

    /// Fills each of `bytes` with the elements of one of the arrays. If the arrays are parts of the
    /// same blocks, such as codes and scales, every block is read only once.
    pub(super) fn read_all(arrays: &[&Self], bytes: &mut [&mut [u8]]) -> Result<()> {
        let ([first, ..], [filled, ..]) = (arrays, &*bytes) else { return Ok(()) };
        let count = filled.len() / first.unit();
        let total: usize = bytes.iter().map(|bytes| bytes.len()).sum();
        let mut parts = Vec::new();
        for (other, bytes) in arrays.iter().zip(&*bytes) {
            parts.extend(first.part_of_blocks(other, bytes.len(), count));
        }
        if arrays.len() > 1 && parts.len() < arrays.len() {
            return arrays.iter().zip(bytes).try_for_each(|(array, bytes)| array.read(bytes));
        }
        let piece = match first.form {
            Form::Blocks(kind, _) => (PIECE / kind.bytes()).max(1),
            Form::Plain | Form::Bool => PIECE,
        };
        let mut pieces = Vec::new();
        pieces.resize_with(count.div_ceil(piece), Vec::new);
        for (array, bytes) in arrays.iter().zip(bytes) {
            for (piece, part) in pieces.iter_mut().zip(bytes.chunks_mut(piece * array.unit())) {
                piece.push(part);
            }
        }
        let failure = Mutex::new(None);
        cpu::for_each_item(&mut pieces, 3 * PIECE, |index, outs| {
            let start = index * piece;
            let result = match &mut **outs {
                [out] => first.read_part(start * first.unit(), out),
                outs => first.read_blocks(first.skipped / first.unit() + start, &parts, outs),
            };
            if let Err(reason) = result {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
            }
        });
        let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Some(reason) = failure else { return Ok(()) };
        let text = format!("{}: expected {total} bytes, got fewer: {reason}", first.tensor);
        Err(match &*first.source {
            Source::File { path, .. } => Error::file(path, text),
            Source::Bytes(_) => Error::argument("load_safetensors", text),
        })
    }

    /// The part of blocks that `other` is, if its `bytes` bytes belong to the `count` blocks from
    /// the first block of this array on.
    fn part_of_blocks(&self, other: &Self, bytes: usize, count: usize) -> Option<Part> {
        let (Form::Blocks(own, _), Form::Blocks(kind, part)) = (self.form, other.form) else {
            return None;
        };
        let alike = Arc::ptr_eq(&self.source, &other.source)
            && (self.offset, own) == (other.offset, kind)
            && self.skipped / self.unit() == other.skipped / other.unit()
            && bytes == count * other.unit();
        (alike && self.runs.is_none() && other.runs.is_none()).then_some(part)
    }

    /// Fills `part`, the bytes of the array from byte `start` on.
    fn read_part(&self, mut start: usize, mut part: &mut [u8]) -> std::io::Result<()> {
        let Some(Runs { length, pitch }) = self.runs else {
            return self.read_run(self.skipped + start, part);
        };
        while !part.is_empty() {
            let (run, skipped) = (start / length, start % length);
            let (now, rest) = part.split_at_mut(part.len().min(length - skipped));
            self.read_run(self.skipped + run * pitch + skipped, now)?;
            start += now.len();
            part = rest;
        }
        Ok(())
    }

    /// Fills `part` with elements that follow each other in the tensor. `start` is the number of
    /// bytes, as in memory, of the elements before them.
    fn read_run(&self, start: usize, part: &mut [u8]) -> std::io::Result<()> {
        match self.form {
            Form::Plain => self.read_bytes(start, part),
            Form::Bool => {
                self.read_bytes(start, part)?;
                // Bytes other than 0 and 1 are not valid bools in Rust.
                part.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
                Ok(())
            }
            Form::Blocks(_, which) => self.read_blocks(start / self.unit(), &[which], &mut [part]),
        }
    }

    /// Fills each of `outs` with one of the parts of the blocks that follow the first `start` ones.
    fn read_blocks(
        &self,
        start: usize,
        parts: &[Part],
        outs: &mut [&mut [u8]],
    ) -> std::io::Result<()> {
        let (Form::Blocks(kind, part), Some(out)) = (self.form, outs.first()) else {
            return Ok(());
        };
        let count = out.len() / kind.part_bytes(part);
        let mut blocks = vec![0; FEW.min(count) * kind.bytes()];
        for at in (0..count).step_by(FEW) {
            let here = FEW.min(count - at);
            let blocks = &mut blocks[..here * kind.bytes()];
            self.read_bytes((start + at) * kind.bytes(), blocks)?;
            for (&part, out) in parts.iter().zip(&mut *outs) {
                let unit = kind.part_bytes(part);
                kind.fill(part, blocks, &mut out[at * unit..][..here * unit]);
            }
        }
        Ok(())
    }

    /// Fills `part` with the bytes that the file has for the tensor, from byte `start` of them on.
    fn read_bytes(&self, start: usize, part: &mut [u8]) -> std::io::Result<()> {
        let offset = self.offset + start as u64;
        match &*self.source {
            Source::File { file, .. } => file.read_exact_at(part, offset),
            Source::Bytes(bytes) => {
                let start = usize::try_from(offset).ok();
                let stored = start.and_then(|start| bytes.get(start..)?.get(..part.len()));
                part.copy_from_slice(stored.ok_or(std::io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}

/// The number of blocks to read at once. They fit in a CPU cache until they are unpacked.
const FEW: usize = 512;

/// The number of bytes that one thread reads before it takes the next piece.
const PIECE: usize = 1 << 16;
