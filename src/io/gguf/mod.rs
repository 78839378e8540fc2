//! Reads the header of a GGUF file and makes its arrays. First checks that every count, length and
//! offset lies within the file.

mod entries;
mod kinds;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::stored::{Source, Stored};
use crate::array::Array;
use entries::{Checked, Cursor};
pub use entries::{Entries, List, Value, brief};
pub use kinds::{GgufType, KQuants};
use kinds::{Kind, rounding};
use mlx_primitives_kernels::ggml_blocks::Part;

const DEFAULT_ALIGNMENT: u64 = 32;

/// A header has at most this many entries, and at most this many tensors: far more than models
/// have, and few enough to take little memory.
const MOST: u64 = 1 << 16;

struct Tensor {
    name: String,
    kind: Kind,
    /// The length of each dimension; blocks lie along the last one.
    shape: Vec<i32>,
    bytes: u64,
    /// In bytes from the start of the data.
    offset: u64,
}

/// The contents of a GGUF file.
#[doc(hidden)]
pub struct GgufTensors {
    pub arrays: HashMap<String, Array>,
    /// The names of biases that the scales determine, as
    /// [`QuantizedWeight::with_centered_codes`](crate::ops::QuantizedWeight::with_centered_codes)
    /// states.
    pub centered: Vec<String>,
    pub entries: Entries,
}

/// A checked header: every count, length and offset lies within the file.
pub(super) struct Header {
    pub entries: Entries,
    tensors: Vec<Tensor>,
    /// Where the data begins.
    start: u64,
}

impl Header {
    /// Makes the arrays of the file. An array reads its elements from `source` when it is used.
    pub(super) fn load(self, source: Source, k_quants: KQuants) -> crate::Result<GgufTensors> {
        let source = Arc::new(source);
        let (mut arrays, mut centered) = (HashMap::new(), Vec::new());
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
            let (scales, biases) = (format!("{stem}.scales"), format!("{stem}.biases"));
            let own = k_quants == KQuants::Own && kind.own_bits().is_some();
            let parts = match own {
                true => vec![(name.clone(), Part::OwnCodes), (scales, Part::OwnScales)],
                false => vec![
                    (name.clone(), Part::Codes),
                    (scales, Part::Scales),
                    (biases, Part::Biases),
                ],
            };
            for (name, part) in parts {
                let array = Stored::unpacked(&source, &name, offset, &shape, kind, part)?;
                if part == Part::Biases && kind.is_centered() {
                    centered.push(name.clone());
                }
                arrays.insert(name, array);
            }
        }
        Ok(GgufTensors { arrays, centered, entries: self.entries })
    }

    /// The types of the tensors, and the results of loading them.
    pub(super) fn types(&self) -> Vec<GgufType> {
        let mut types: BTreeMap<&str, GgufType> = BTreeMap::new();
        for tensor in &self.tensors {
            let (bits, rounding, own_bits) = match tensor.kind {
                Kind::Plain(_) => (None, None, None),
                Kind::Blocks(kind) => {
                    let own_bits = kind.own_bits().map(|bits| bits as i32);
                    (Some(kind.bits() as i32), rounding(kind), own_bits)
                }
            };
            let name = tensor.kind.name();
            let of_type = types.entry(name).or_insert(GgufType {
                name,
                tensors: 0,
                bytes: 0,
                bits,
                rounding,
                own_bits,
            });
            of_type.tensors += 1;
            of_type.bytes += tensor.bytes;
        }
        types.into_values().collect()
    }

    /// Returns an error if two tensors share bytes.
    fn check_overlaps(&self) -> Checked {
        let mut sorted: Vec<&Tensor> = self.tensors.iter().filter(|it| it.bytes > 0).collect();
        sorted.sort_unstable_by_key(|tensor| tensor.offset);
        for pair in sorted.windows(2) {
            let [first, second] = pair else { continue };
            if second.offset - first.offset < first.bytes {
                let (first, second) = (&first.name, &second.name);
                return Err(format!("expected tensors apart, got {second} within {first}"));
            }
        }
        Ok(())
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
    match cursor.u32()? {
        2 | 3 => {}
        0x0200_0000 | 0x0300_0000 => {
            return Err("expected numbers in little-endian order, got big-endian ones".into());
        }
        version => return Err(format!("expected GGUF version 2 or 3, got {version}")),
    }
    let (tensors, count) = (cursor.u64()?, cursor.u64()?);
    for (name, count) in [("tensors", tensors), ("entries", count)] {
        if count > MOST {
            return Err(format!("expected at most {MOST} {name}, got {count}"));
        }
    }
    let mut entries = Entries::default();
    for _ in 0..count {
        let key = cursor.name()?;
        let value = cursor.value(&key)?;
        entries.insert(key, value)?;
    }
    let alignment = match entries.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(Value::Unsigned(value)) if value.is_power_of_two() && *value <= MOST => *value,
        Some(value) => {
            return Err(format!(
                "expected a general.alignment that is a power of two up to {MOST}, got {}",
                value.brief()
            ));
        }
    };
    let mut header = Header { entries, tensors: Vec::new(), start: 0 };
    for _ in 0..tensors {
        let name = cursor.name()?;
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
    header.check_overlaps()?;
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
    let kind = Kind::of(number)?;
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
