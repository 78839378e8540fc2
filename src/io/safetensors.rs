//! A walk over a safetensors file's header, one tensor at a time. MLX trusts offsets and lengths,
//! so nothing reaches it that does not add up; what is wrong is said of a tensor by name.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use safetensors::SafeTensors;

/// Bytes of a header beyond which the format's own reader refuses.
const MAX_HEADER: usize = 100_000_000;
/// Far above what any checkpoint has.
const MAX_RANK: usize = 32;
const MAX_TENSORS: usize = 1 << 18;

/// Whether every shape, type and offset of the header stays within the file.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
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
    // What is left is that tensors leave no gaps.
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    match metadata.data_len() == data.len() {
        true => Ok(()),
        false => Err(format!("expected {} bytes of data, got {}", metadata.data_len(), data.len())),
    }
}

/// The header; `name` is that of the tensor at hand.
struct Walk<'a> {
    name: &'a mut Option<String>,
    /// Bytes of data.
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
        let mut count = 0;
        while let Some(name) = map.next_key::<String>()? {
            count += 1;
            if count > MAX_TENSORS {
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

/// Dimensions, of which no file can list so many that they fill the memory.
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
