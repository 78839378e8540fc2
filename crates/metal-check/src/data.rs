//! Parses the descriptions of buffer contents and values on the command line.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};

/// The largest size of a buffer, in bytes.
const MOST: u64 = 8 << 30;

/// The type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    Bf16,
    F32,
}

const KINDS: [(&str, Kind, usize); 12] = [
    ("i8", Kind::I8, 1),
    ("u8", Kind::U8, 1),
    ("bool", Kind::U8, 1),
    ("i16", Kind::I16, 2),
    ("u16", Kind::U16, 2),
    ("i32", Kind::I32, 4),
    ("u32", Kind::U32, 4),
    ("i64", Kind::I64, 8),
    ("u64", Kind::U64, 8),
    ("f16", Kind::F16, 2),
    ("bf16", Kind::Bf16, 2),
    ("f32", Kind::F32, 4),
];

impl Kind {
    fn named(name: &str) -> Result<(Self, usize)> {
        let known = || KINDS.map(|(name, ..)| name).join(", ");
        let found = KINDS.into_iter().find(|(known, ..)| *known == name);
        let (_, kind, bytes) =
            found.with_context(|| format!("no type {name}; there are {}", known()))?;
        Ok((kind, bytes))
    }

    fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32)
    }

    /// Parses a number and returns its bytes. An integer outside the type's range is an error.
    fn bytes(self, text: &str) -> Result<Vec<u8>> {
        let text = match text {
            "true" => "1",
            "false" => "0",
            text => text,
        };
        if self.is_float() {
            let value: f32 = text.parse().with_context(|| format!("{text} is no number"))?;
            return Ok(self.of_float(value));
        }
        let value: i128 = text.parse().with_context(|| format!("{text} is no integer"))?;
        self.of_integer(value).with_context(|| format!("{text} does not fit its type"))
    }

    /// Converts the bytes to a number, for a comparison or a message.
    fn number(self, bytes: &[u8]) -> f64 {
        let mut all = [0; 8];
        all[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(all);
        let negative = bytes.last().is_some_and(|byte| byte >> 7 == 1);
        match self {
            Self::F32 => f64::from(f32::from_bits(word as u32)),
            Self::F16 => f16::from_bits(word as u16).to_f64(),
            Self::Bf16 => bf16::from_bits(word as u16).to_f64(),
            Self::I8 | Self::I16 | Self::I32 | Self::I64 if negative => {
                let above = if bytes.len() == 8 { 0 } else { u64::MAX << (8 * bytes.len()) };
                (word | above) as i64 as f64
            }
            _ => word as f64,
        }
    }

    fn of_float(self, value: f32) -> Vec<u8> {
        match self {
            Self::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            Self::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        }
    }

    fn of_integer(self, value: i128) -> Option<Vec<u8>> {
        Some(match self {
            Self::I8 => i8::try_from(value).ok()?.to_le_bytes().to_vec(),
            Self::U8 => u8::try_from(value).ok()?.to_le_bytes().to_vec(),
            Self::I16 => i16::try_from(value).ok()?.to_le_bytes().to_vec(),
            Self::U16 => u16::try_from(value).ok()?.to_le_bytes().to_vec(),
            Self::I32 => i32::try_from(value).ok()?.to_le_bytes().to_vec(),
            Self::U32 => u32::try_from(value).ok()?.to_le_bytes().to_vec(),
            Self::I64 => i64::try_from(value).ok()?.to_le_bytes().to_vec(),
            Self::U64 => u64::try_from(value).ok()?.to_le_bytes().to_vec(),
            Self::F16 | Self::Bf16 | Self::F32 => return None,
        })
    }
}

/// Splits `INDEX=TEXT` into the index and the text.
pub fn indexed(text: &str) -> Result<(u32, &str)> {
    let (index, rest) =
        text.split_once('=').with_context(|| format!("{text}: expected INDEX=..."))?;
    Ok((index.parse().with_context(|| format!("{text}: {index} is no index"))?, rest))
}

/// The contents of a buffer. `filled` is false if the buffer is uninitialized before the kernel
/// runs.
pub struct Contents {
    pub bytes: Vec<u8>,
    pub filled: bool,
    kind: Kind,
    size: usize,
}

impl Contents {
    /// Describes the elements of `got` that differ from these contents, if there are any.
    pub fn difference(&self, got: &[u8], tolerance: f32) -> Option<String> {
        let Self { kind, size, .. } = *self;
        let pairs = || got.chunks_exact(size).zip(self.bytes.chunks_exact(size));
        let near = |got: &[u8], want: &[u8]| {
            let (got, want) = (kind.number(got), kind.number(want));
            let most = f64::from(tolerance) * want.abs().max(1.0);
            got == want || (got - want).abs() <= most || got.is_nan() && want.is_nan()
        };
        let differ =
            |(got, want): (&[u8], &[u8])| got != want && !(kind.is_float() && near(got, want));
        let first = pairs().position(differ)?;
        let count = pairs().filter(|pair| differ(*pair)).count();
        let (got, want) = pairs().nth(first)?;
        let (got, want) = (kind.number(got), kind.number(want));
        let all = self.bytes.len() / size;
        Some(format!("element {first} is {got}, expected {want}; {count} of {all} differ"))
    }
}

/// Parses `TYPE:COUNT`, optionally followed by `:random`, `:zeros`, `:iota`, `:VALUE`,
/// `:VALUE,VALUE...` or `:@FILE`. The path of a file is relative to `folder`.
pub fn buffer(text: &str, seed: u64, folder: &Path) -> Result<Contents> {
    let mut parts = text.splitn(3, ':');
    let (kind, size) = Kind::named(parts.next().unwrap_or_default())?;
    let count = parts.next().context("expected TYPE:COUNT")?;
    let count: u64 = count.parse().with_context(|| format!("{count} is no number of elements"))?;
    ensure!(count.saturating_mul(size as u64) <= MOST, "a buffer has at most {MOST} bytes");
    let count = usize::try_from(count)?;
    let Some(content) = parts.next() else {
        return Ok(Contents { bytes: vec![0; count * size], filled: false, kind, size });
    };
    let mut random = fastrand::Rng::with_seed(seed);
    let bytes = match content {
        "zeros" => vec![0; count * size],
        "random" if kind.is_float() => {
            (0..count).flat_map(|_| kind.of_float(2.0 * random.f32() - 1.0)).collect()
        }
        "random" => {
            let most = if text.starts_with("bool") { 2 } else { 10 };
            (0..count).filter_map(|_| kind.of_integer(random.i128(0..most))).flatten().collect()
        }
        "iota" if kind.is_float() => (0..count).flat_map(|i| kind.of_float(i as f32)).collect(),
        "iota" => {
            let numbers = (0..count as i128).map(|i| kind.of_integer(i));
            let numbers: Option<Vec<_>> = numbers.collect();
            numbers.context("so many numbers do not fit the type")?.concat()
        }
        file if file.starts_with('@') => {
            let path = folder.join(&file[1..]);
            let shown = path.display();
            let bytes = fs::read(&path).with_context(|| shown.to_string())?;
            let wanted = count * size;
            ensure!(bytes.len() == wanted, "{shown} has {} bytes, expected {wanted}", bytes.len());
            bytes
        }
        list if list.contains(',') => {
            let numbers: Result<Vec<_>> = list.split(',').map(|one| kind.bytes(one)).collect();
            let numbers = numbers?;
            ensure!(numbers.len() == count, "expected {count} numbers, got {}", numbers.len());
            numbers.concat()
        }
        value => kind.bytes(value)?.repeat(count),
    };
    Ok(Contents { bytes, filled: true, kind, size })
}

/// Parses one or more lists `TYPE:VALUE[,VALUE...]`, joined by `+`. Lays out all values like the
/// members of a C struct.
pub fn values(text: &str) -> Result<Vec<u8>> {
    let (mut bytes, mut widest) = (Vec::new(), 1);
    for part in text.split('+') {
        let (kind, values) = part.split_once(':').context("expected TYPE:VALUE")?;
        let (kind, size) = Kind::named(kind)?;
        widest = widest.max(size);
        for value in values.split(',') {
            bytes.resize(bytes.len().next_multiple_of(size), 0);
            bytes.extend(kind.bytes(value)?);
        }
    }
    bytes.resize(bytes.len().next_multiple_of(widest), 0);
    Ok(bytes)
}

/// Parses a function constant `TYPE:VALUE` and returns its bits.
pub fn constant(text: &str) -> Result<u64> {
    let bytes = values(text)?;
    if bytes.len() > 8 {
        bail!("{text}: a function constant is one number");
    }
    let mut bits = [0; 8];
    bits[..bytes.len()].copy_from_slice(&bytes);
    Ok(u64::from_le_bytes(bits))
}
