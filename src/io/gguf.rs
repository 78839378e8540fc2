//! A walk over a GGUF file's header. MLX maps the file and follows whatever it says, so nothing
//! reaches it that leads out of the file.

type Checked<T = ()> = std::result::Result<T, String>;

const DEFAULT_ALIGNMENT: u64 = 32;

/// Fixed sizes of entry values by type; 8 is text, 9 a list, 12 an f64.
const VALUE_BYTES: [u64; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
const TEXT: u32 = 8;
const LIST: u32 = 9;
const F64: u32 = 12;

struct Header<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Header<'a> {
    fn take(&mut self, count: u64) -> Checked<&'a [u8]> {
        let end = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count));
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or("expected a whole GGUF file, got one that ends in its header")?;
        self.at += taken.len();
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Checked<u64> {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(self.take(N as u64)?);
        Ok(u64::from_le_bytes(bytes))
    }

    fn text(&mut self) -> Checked<&'a [u8]> {
        let length = self.number::<8>()?;
        self.take(length)
    }

    /// Passes over a value; a list holds no lists.
    fn value(&mut self, kind: u32, key: &str) -> Checked {
        match kind {
            TEXT => self.text().map(drop),
            LIST => {
                let kind = self.number::<4>()? as u32;
                let count = self.number::<8>()?;
                if kind == LIST || kind == F64 || i32::try_from(count).is_err() {
                    return Err(format!("expected entries that MLX reads, got {key}"));
                }
                if kind == TEXT {
                    return (0..count).try_for_each(|_| self.text().map(drop));
                }
                let bytes = fixed(kind, key)?;
                self.take(count.saturating_mul(bytes)).map(drop)
            }
            // MLX steps over half of it and reads the rest as the next key.
            F64 => Err(format!("expected entries that MLX reads, got a float64 in {key}")),
            _ => self.take(fixed(kind, key)?).map(drop),
        }
    }
}

fn fixed(kind: u32, key: &str) -> Checked<u64> {
    let bytes = VALUE_BYTES.get(kind as usize).copied().filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| format!("expected entries of a known type, got {kind} in {key}"))
}

/// Elements and bytes of a block of a tensor's type, for those that MLX loads.
fn block(kind: u32) -> Option<(u64, u64)> {
    Some(match kind {
        0 | 26 => (1, 4),
        1 | 25 | 30 => (1, 2),
        24 => (1, 1),
        2 => (32, 18),
        3 => (32, 20),
        8 => (32, 34),
        10 => (256, 84),
        12 => (256, 144),
        14 => (256, 210),
        _ => return None,
    })
}

/// Whether every count, length and offset of the header stays within the file.
pub(super) fn check(bytes: &[u8]) -> Checked {
    let mut header = Header { bytes, at: 0 };
    if bytes.get(..4) != Some(b"GGUF") {
        return Err("expected a GGUF file, got another format".into());
    }
    header.take(4)?;
    let version = header.number::<4>()?;
    if !(2..=3).contains(&version) {
        return Err(format!("expected GGUF version 2 or 3, got {version}"));
    }
    let (tensors, entries) = (header.number::<8>()?, header.number::<8>()?);
    let mut alignment = DEFAULT_ALIGNMENT;
    for _ in 0..entries {
        let key = String::from_utf8_lossy(header.text()?);
        let kind = header.number::<4>()? as u32;
        let start = header.at;
        header.value(kind, &key)?;
        if key == "general.alignment" {
            let value = Header { bytes: &bytes[..header.at], at: start }.number::<4>()?;
            if kind != 4 || !value.is_power_of_two() {
                return Err(format!("expected an alignment that is a power of two, got {value}"));
            }
            alignment = value;
        }
    }
    let mut ends = Vec::new();
    for _ in 0..tensors {
        let name = String::from_utf8_lossy(header.text()?);
        ends.push(tensor_end(&mut header, alignment).map_err(|e| format!("{e} in {name}"))?);
    }
    let data = (header.at as u64).next_multiple_of(alignment);
    let room = (bytes.len() as u64).saturating_sub(data);
    match ends.into_iter().max() {
        Some(end) if end > room => {
            Err(format!("expected {end} bytes of tensors, got a file with {room}"))
        }
        _ => Ok(()),
    }
}

/// Where a tensor's data ends, from the start of all data.
fn tensor_end(header: &mut Header<'_>, alignment: u64) -> Checked<u64> {
    let rank = header.number::<4>()?;
    if !(1..=4).contains(&rank) {
        return Err(format!("expected 1 to 4 dimensions, got {rank}"));
    }
    let dims: Vec<u64> = (0..rank).map(|_| header.number::<8>()).collect::<Checked<_>>()?;
    let kind = header.number::<4>()? as u32;
    let offset = header.number::<8>()?;
    let (elements, bytes) =
        block(kind).ok_or_else(|| format!("expected a type that MLX loads, got {kind}"))?;
    if dims.iter().any(|&dim| dim > i32::MAX as u64) || !dims[0].is_multiple_of(elements) {
        return Err(format!("expected dimensions in whole blocks of {elements}, got {dims:?}"));
    }
    if !offset.is_multiple_of(alignment) {
        return Err(format!("expected an offset aligned to {alignment}, got {offset}"));
    }
    dims.iter()
        .try_fold(1u64, |size, &dim| size.checked_mul(dim))
        .and_then(|size| (size / elements).checked_mul(bytes)?.checked_add(offset))
        .ok_or_else(|| format!("expected sizes that fit the file, got {dims:?}"))
}
