//! Checks the header of a GGUF file before any array is made: every count, length and offset has to
//! lie within the file.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::stored::{Source, Stored};
use super::{GgufType, Tensors};
use crate::cpu::ggml_blocks::{BlockType, Part};
use crate::dtype::Dtype;

type Checked<T = ()> = std::result::Result<T, String>;

const DEFAULT_ALIGNMENT: u64 = 32;

/// Longer lists of numbers, such as the scores of a vocabulary, are left out of
/// [`Tensors::metadata`].
const MOST_LISTED: u64 = 1000;

/// The types of entries that are not scalars.
const TEXT: u32 = 8;
const LIST: u32 = 9;

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: u64) -> Checked<&'a [u8]> {
        let end = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count));
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or("expected a whole GGUF file, got one that ends in its header")?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Checked<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64)?);
        Ok(bytes)
    }

    fn u32(&mut self) -> Checked<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Checked<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Checked<String> {
        let length = self.u64()?;
        Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    /// Reads a value of a type of fixed size, as text.
    fn scalar(&mut self, kind: u32, key: &str) -> Checked<String> {
        Ok(match kind {
            0 => u8::from_le_bytes(self.array()?).to_string(),
            1 => i8::from_le_bytes(self.array()?).to_string(),
            2 => u16::from_le_bytes(self.array()?).to_string(),
            3 => i16::from_le_bytes(self.array()?).to_string(),
            4 => self.u32()?.to_string(),
            5 => i32::from_le_bytes(self.array()?).to_string(),
            6 => f32::from_le_bytes(self.array()?).to_string(),
            7 if self.array::<1>()? == [0] => "False".to_owned(),
            7 => "True".to_owned(),
            10 => self.u64()?.to_string(),
            11 => i64::from_le_bytes(self.array()?).to_string(),
            12 => f64::from_le_bytes(self.array()?).to_string(),
            _ => return Err(format!("expected entries of a known type, got {kind} in {key}")),
        })
    }

    /// Reads a value as text; `None` for a list of texts or a long list of numbers.
    fn value(&mut self, kind: u32, key: &str) -> Checked<Option<String>> {
        if kind == TEXT {
            return self.text().map(Some);
        }
        if kind != LIST {
            return self.scalar(kind, key).map(Some);
        }
        let (kind, count) = (self.u32()?, self.u64()?);
        match kind {
            LIST => Err(format!("expected lists of numbers or texts, got one of lists in {key}")),
            TEXT => {
                for _ in 0..count {
                    let length = self.u64()?;
                    self.take(length)?;
                }
                Ok(None)
            }
            _ if count > MOST_LISTED => {
                let start = self.at;
                self.scalar(kind, key)?;
                let size = (self.at - start) as u64;
                self.take(size.saturating_mul(count - 1))?;
                Ok(None)
            }
            _ => {
                let items: Vec<_> =
                    (0..count).map(|_| self.scalar(kind, key)).collect::<Checked<_>>()?;
                Ok(Some(format!("[{}]", items.join(", "))))
            }
        }
    }
}

/// How a tensor's elements are stored.
#[derive(Clone, Copy)]
enum Kind {
    Plain(Dtype),
    Blocks(BlockType),
}

impl Kind {
    /// The type with this number in files.
    fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Plain(Dtype::Float32),
            1 => Self::Plain(Dtype::Float16),
            2 => Self::Blocks(BlockType::Q4_0),
            3 => Self::Blocks(BlockType::Q4_1),
            6 => Self::Blocks(BlockType::Q5_0),
            7 => Self::Blocks(BlockType::Q5_1),
            8 => Self::Blocks(BlockType::Q8_0),
            10 => Self::Blocks(BlockType::Q2K),
            11 => Self::Blocks(BlockType::Q3K),
            12 => Self::Blocks(BlockType::Q4K),
            13 => Self::Blocks(BlockType::Q5K),
            14 => Self::Blocks(BlockType::Q6K),
            20 => Self::Blocks(BlockType::Iq4Nl),
            23 => Self::Blocks(BlockType::Iq4Xs),
            24 => Self::Plain(Dtype::Int8),
            25 => Self::Plain(Dtype::Int16),
            26 => Self::Plain(Dtype::Int32),
            27 => Self::Plain(Dtype::Int64),
            30 => Self::Plain(Dtype::Bfloat16),
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plain(Dtype::Float32) => "F32",
            Self::Plain(Dtype::Float16) => "F16",
            Self::Plain(Dtype::Bfloat16) => "BF16",
            Self::Plain(Dtype::Int8) => "I8",
            Self::Plain(Dtype::Int16) => "I16",
            Self::Plain(Dtype::Int32) => "I32",
            Self::Plain(_) => "I64",
            Self::Blocks(kind) => kind.name(),
        }
    }

    /// The number of elements and of bytes of a block.
    fn block(self) -> (u64, u64) {
        match self {
            Self::Plain(dtype) => (1, dtype.size() as u64),
            Self::Blocks(kind) => (kind.weights() as u64, kind.bytes() as u64),
        }
    }
}

/// The most that weights of this type are rounded by, in words; `None` if they are not rounded.
fn rounding(kind: BlockType) -> Option<&'static str> {
    match kind {
        _ if kind.is_exact() => None,
        BlockType::Q6K => Some("1/6 of a step"),
        _ => Some("1/62 of a group's range"),
    }
}

struct Tensor {
    name: String,
    kind: Kind,
    /// The length of each dimension; blocks lie along the last one.
    shape: Vec<i32>,
    bytes: u64,
    /// In bytes from the start of the data.
    offset: u64,
}

/// A checked header: every count, length and offset lies within the file.
pub(super) struct Header {
    metadata: HashMap<String, String>,
    tensors: Vec<Tensor>,
    /// Where the data begins.
    start: u64,
}

impl Header {
    /// Makes the arrays of the file, whose elements are read from `source` when they are used.
    pub(super) fn load(self, source: Source) -> crate::Result<Tensors> {
        let source = Arc::new(source);
        let mut arrays = HashMap::new();
        for Tensor { name, kind, shape, offset, .. } in self.tensors {
            let offset = self.start + offset;
            let kind = match kind {
                Kind::Plain(dtype) => {
                    let array = Stored::array(&source, name.clone(), offset, &shape, dtype)?;
                    arrays.insert(name, array);
                    continue;
                }
                Kind::Blocks(kind) => kind,
            };
            let stem = name.strip_suffix(".weight").unwrap_or(&name);
            for (name, part) in [
                (name.clone(), Part::Codes),
                (format!("{stem}.scales"), Part::Scales),
                (format!("{stem}.biases"), Part::Biases),
            ] {
                let array = Stored::unpacked(&source, &name, offset, &shape, kind, part)?;
                arrays.insert(name, array);
            }
        }
        Ok(Tensors { arrays, metadata: self.metadata })
    }

    /// The types of the tensors, and the results of converting them.
    pub(super) fn types(&self) -> Vec<GgufType> {
        let mut types: BTreeMap<&str, GgufType> = BTreeMap::new();
        for tensor in &self.tensors {
            let (bits, rounding) = match tensor.kind {
                Kind::Plain(_) => (None, None),
                Kind::Blocks(kind) => (Some(kind.bits() as i32), rounding(kind)),
            };
            let name = tensor.kind.name();
            let of_type = types.entry(name).or_insert(GgufType {
                name,
                tensors: 0,
                bytes: 0,
                bits,
                rounding,
            });
            of_type.tensors += 1;
            of_type.bytes += tensor.bytes;
        }
        types.into_values().collect()
    }

    /// Returns an error if two of the arrays would have the same name.
    fn check_names(&self) -> Checked {
        let mut names = std::collections::HashSet::new();
        for tensor in &self.tensors {
            let stem = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
            let parts = match tensor.kind {
                Kind::Plain(_) => [None, None],
                Kind::Blocks(_) => [Some(format!("{stem}.scales")), Some(format!("{stem}.biases"))],
            };
            for name in parts.into_iter().flatten().chain([tensor.name.clone()]) {
                if let Some(twice) = names.replace(name) {
                    return Err(format!("expected tensors of different names, got {twice} twice"));
                }
            }
        }
        Ok(())
    }
}

/// Reads and checks the header of a file.
pub(super) fn check(bytes: &[u8]) -> Checked<Header> {
    let mut cursor = Cursor { bytes, at: 0 };
    if bytes.get(..4) != Some(b"GGUF") {
        return Err("expected a GGUF file, got another format".into());
    }
    cursor.take(4)?;
    let version = cursor.u32()?;
    if !(2..=3).contains(&version) {
        return Err(format!("expected GGUF version 2 or 3, got {version}"));
    }
    let (tensors, entries) = (cursor.u64()?, cursor.u64()?);
    let mut alignment = DEFAULT_ALIGNMENT;
    let mut metadata = HashMap::new();
    for _ in 0..entries {
        let key = cursor.text()?;
        let kind = cursor.u32()?;
        let Some(value) = cursor.value(kind, &key)? else { continue };
        if key == "general.alignment" {
            alignment = value
                .parse()
                .ok()
                .filter(|value: &u64| kind == 4 && value.is_power_of_two())
                .ok_or_else(|| {
                    format!("expected an alignment that is a power of two, got {value}")
                })?;
        }
        metadata.insert(key, value);
    }
    let mut header = Header { metadata, tensors: Vec::new(), start: 0 };
    for _ in 0..tensors {
        let name = cursor.text()?;
        let tensor = tensor(&mut cursor, name.clone(), alignment);
        header.tensors.push(tensor.map_err(|e| format!("{e} in {name}"))?);
    }
    header.start = (cursor.at as u64).next_multiple_of(alignment);
    let room = (bytes.len() as u64).saturating_sub(header.start);
    for Tensor { name, offset, bytes, .. } in &header.tensors {
        if offset.checked_add(*bytes).is_none_or(|end| end > room) {
            return Err(format!(
                "expected {bytes} bytes of {name} from {offset}, got a file with {room} in all"
            ));
        }
    }
    header.check_names()?;
    Ok(header)
}

/// Reads the entry of one tensor in the header.
fn tensor(cursor: &mut Cursor<'_>, name: String, alignment: u64) -> Checked<Tensor> {
    let rank = cursor.u32()?;
    if !(1..=4).contains(&rank) {
        return Err(format!("expected 1 to 4 dimensions, got {rank}"));
    }
    let dims: Vec<u64> = (0..rank).map(|_| cursor.u64()).collect::<Checked<_>>()?;
    let number = cursor.u32()?;
    let offset = cursor.u64()?;
    let kind = Kind::of(number).ok_or_else(|| {
        format!(
            "expected a type among F32, F16, BF16, I8 to I64, Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL and \
             IQ4_XS, got number {number}"
        )
    })?;
    let (elements, bytes) = kind.block();
    let shape: Option<Vec<i32>> = dims.iter().rev().map(|&dim| i32::try_from(dim).ok()).collect();
    let shape = shape.filter(|_| dims[0].is_multiple_of(elements)).ok_or_else(|| {
        format!("expected dimensions of 32 bits in whole blocks of {elements}, got {dims:?}")
    })?;
    if !offset.is_multiple_of(alignment) {
        return Err(format!("expected an offset aligned to {alignment}, got {offset}"));
    }
    let bytes = dims
        .iter()
        .try_fold(1u64, |size, &dim| size.checked_mul(dim))
        .and_then(|size| (size / elements).checked_mul(bytes))
        .ok_or_else(|| format!("expected sizes that fit the file, got {dims:?}"))?;
    Ok(Tensor { name, kind, shape, bytes, offset })
}
