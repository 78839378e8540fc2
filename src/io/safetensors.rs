//! Reads the header of a safetensors file and makes its arrays. First checks the header, one tensor
//! at a time, so that an error can name the tensor.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype as StoredDtype, Metadata};

use super::stored::{Source, Stored};
use crate::array::Array;
use crate::dtype::Dtype;

/// The most bytes of a header that the `safetensors` crate reads.
const MAX_HEADER: usize = 100_000_000;
/// Limits for the rank of a tensor and the number of tensors. Known checkpoints stay far below.
const MAX_RANK: usize = 32;
const MAX_TENSORS: usize = 1 << 16;

/// The named arrays and the metadata of a file.
#[derive(Default)]
pub struct Tensors {
    /// The arrays by name.
    pub arrays: HashMap<String, Array>,
    /// The entries of the file's header, as text.
    pub metadata: HashMap<String, String>,
}

/// A checked header: the offsets lie within the file, and fit the shapes and the types.
pub(super) struct Header {
    metadata: Metadata,
    /// Where the data begins.
    start: u64,
}

impl Header {
    /// Makes the arrays of the file. An array reads its elements from `source` when it is used.
    pub(super) fn load(self, source: Source) -> crate::Result<Tensors> {
        let source = Arc::new(source);
        let mut arrays = HashMap::new();
        for (name, info) in self.metadata.tensors() {
            let shape: Vec<i32> =
                info.shape.iter().map(|&dim| i32::try_from(dim).unwrap_or(i32::MAX)).collect();
            let offset = self.start + info.data_offsets.0 as u64;
            let dtype = dtype(info.dtype);
            let array = Stored::array(&source, name.clone(), offset, &shape, dtype)?;
            arrays.insert(name, array);
        }
        let metadata = self.metadata.metadata().clone().unwrap_or_default();
        Ok(Tensors { arrays, metadata })
    }
}

/// The type of the elements in MLX. Eight-bit floats become bytes; `check` refuses other types that
/// MLX lacks.
fn dtype(stored: StoredDtype) -> Dtype {
    match stored {
        StoredDtype::BOOL => Dtype::Bool,
        StoredDtype::I8 => Dtype::Int8,
        StoredDtype::I16 => Dtype::Int16,
        StoredDtype::I32 => Dtype::Int32,
        StoredDtype::I64 => Dtype::Int64,
        StoredDtype::U16 => Dtype::Uint16,
        StoredDtype::U32 => Dtype::Uint32,
        StoredDtype::U64 => Dtype::Uint64,
        StoredDtype::F16 => Dtype::Float16,
        StoredDtype::BF16 => Dtype::Bfloat16,
        StoredDtype::F32 => Dtype::Float32,
        StoredDtype::C64 => Dtype::Complex64,
        _ => Dtype::Uint8,
    }
}

/// Reads and checks the header of a file.
pub(super) fn check(bytes: &[u8]) -> Result<Header, String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err("expected a safetensors file, got under 8 bytes".into());
    };
    let length = u64::from_le_bytes(*length);
    let header = usize::try_from(length).ok().filter(|&length| length <= MAX_HEADER);
    let Some((header, data)) = header.and_then(|length| rest.split_at_checked(length)) else {
        return Err(format!(
            "expected a header within {} bytes, got one of {length}",
            rest.len().min(MAX_HEADER)
        ));
    };
    let mut name = None;
    let walk = Walk { name: &mut name, room: data.len() as u64 };
    let mut json = serde_json::Deserializer::from_slice(header);
    if let Err(error) = walk.deserialize(&mut json).and_then(|()| json.end()) {
        return Err(match name {
            Some(name) => format!("{name}: {error}"),
            None => format!("expected a header of JSON: {error}"),
        });
    }
    // `read_metadata` checks that there are no gaps between the tensors.
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    if metadata.data_len() != data.len() {
        return Err(format!("expected {} bytes of data, got {}", metadata.data_len(), data.len()));
    }
    Ok(Header { metadata, start: 8 + length })
}

/// Deserializes and checks the header. Sets `name` to the name of the current tensor.
struct Walk<'a> {
    name: &'a mut Option<String>,
    /// The number of bytes of data.
    room: u64,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                *self.name = Some(name);
                return Err(A::Error::custom("expected each name once, got it twice"));
            }
            if names.len() > MAX_TENSORS {
                return Err(A::Error::custom(format_args!("more than {MAX_TENSORS} tensors")));
            }
            let metadata = name == "__metadata__";
            *self.name = Some(name);
            match metadata {
                true => map.next_value::<IgnoredAny>().map(drop)?,
                false => map.next_value::<Entry>()?.check(self.room).map_err(A::Error::custom)?,
            }
            *self.name = None;
        }
        Ok(())
    }
}

#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

impl Entry {
    fn check(&self, room: u64) -> Result<(), String> {
        let size = match &*self.dtype {
            "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E8M0" => 1,
            "U16" | "I16" | "F16" | "BF16" => 2,
            "U32" | "I32" | "F32" => 4,
            "U64" | "I64" | "C64" => 8,
            other => return Err(format!("expected a type that MLX loads, got {other:.32}")),
        };
        let Shape(shape) = &self.shape;
        if shape.iter().any(|&dim| i32::try_from(dim).is_err()) {
            return Err(format!("expected dimensions of 32 bits, got {shape:?}"));
        }
        let bytes = shape.iter().try_fold(size, |size: u64, &dim| size.checked_mul(dim));
        let [start, end] = self.data_offsets;
        match bytes {
            Some(bytes) if end.checked_sub(start) == Some(bytes) && end <= room => Ok(()),
            _ => Err(format!(
                "expected {shape:?} of {} within {room} bytes of data, got bytes {start} to {end}",
                self.dtype
            )),
        }
    }
}

/// A tensor's dimensions. There are at most [`MAX_RANK`], so that a file cannot fill the memory
/// with a long list.
struct Shape(Vec<u64>);

impl<'de> serde::Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Dims;
        impl<'de> Visitor<'de> for Dims {
            type Value = Shape;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_RANK {
                        return Err(A::Error::custom(format_args!("a rank above {MAX_RANK}")));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims))
            }
        }
        json.deserialize_seq(Dims)
    }
}
