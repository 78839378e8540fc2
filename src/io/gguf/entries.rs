//! The entries of a header, with their types. An entry takes at most as much memory as it has bytes
//! in the file, plus a fixed size. The number of entries is limited. Strings are called texts here.

use std::collections::HashMap;

pub type Checked<T = ()> = Result<T, String>;

/// The longest list that is kept, in elements. Entries of a tokenizer may be longer.
const MOST_LISTED: u64 = 1000;

/// The bytes of the longest accepted text: far more than chat templates have.
const MOST_TEXT: u64 = 16 << 20;

/// The bytes of the longest accepted name: several times as long as the names of known models.
const MOST_NAME: usize = 200;

/// The types of entries that are not numbers.
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const LIST: u32 = 9;

/// The value of an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Text(String),
    List(List),
    /// A list that is too long to be kept.
    Long,
}

/// A list of numbers or texts, as the bytes of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    kind: u32,
    count: usize,
    bytes: Box<[u8]>,
}

impl List {
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The texts, or `None` for a list of numbers. A text that is not UTF-8 is `None`.
    pub fn texts(&self) -> Option<impl Iterator<Item = Option<&str>>> {
        let mut cursor = Cursor { bytes: &self.bytes, at: 0 };
        (self.kind == TEXT).then(|| {
            (0..self.count).map(move |_| {
                let length = cursor.u64().ok()?;
                std::str::from_utf8(cursor.take(length).ok()?).ok()
            })
        })
    }

    /// The numbers, or `None` for a list of texts.
    pub fn numbers(&self) -> Option<impl Iterator<Item = f64>> {
        (self.kind != TEXT).then(|| self.scalars().map(|value| value.number().unwrap_or(f64::NAN)))
    }

    /// The bytes of a list of numbers of 8 bits; `None` for another list.
    pub fn bytes(&self) -> Option<&[u8]> {
        matches!(self.kind, 0 | 1).then_some(&*self.bytes)
    }

    fn scalars(&self) -> impl Iterator<Item = Value> {
        let mut cursor = Cursor { bytes: &self.bytes, at: 0 };
        // The length was checked when the bytes were read.
        (0..self.count).map_while(move |_| cursor.scalar(self.kind, "").ok())
    }
}

impl Value {
    pub fn number(&self) -> Option<f64> {
        match *self {
            Self::Unsigned(number) => Some(number as f64),
            Self::Signed(number) => Some(number as f64),
            // Converts through the shortest decimal of the 32-bit number, which is most likely the
            // number that the author wrote.
            Self::F32(number) => number.to_string().parse().ok(),
            Self::F64(number) => Some(number),
            _ => None,
        }
    }

    /// The value as an error shows it: shortened and without control characters.
    pub fn brief(&self) -> String {
        match self {
            Self::List(list) => format!("a list of {}", list.count),
            Self::Long => "a long list".to_owned(),
            Self::Text(text) => brief(text),
            other => other.to_text().unwrap_or_default(),
        }
    }

    /// The entry as text; `None` for a list of texts and a long list.
    fn to_text(&self) -> Option<String> {
        Some(match self {
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::Unsigned(number) => number.to_string(),
            Self::Signed(number) => number.to_string(),
            Self::F32(number) => number.to_string(),
            Self::F64(number) => number.to_string(),
            Self::Text(text) => text.clone(),
            Self::List(list) if list.kind != TEXT && list.count as u64 <= MOST_LISTED => {
                let items: Vec<_> = list.scalars().filter_map(|item| item.to_text()).collect();
                format!("[{}]", items.join(", "))
            }
            Self::List(_) | Self::Long => return None,
        })
    }
}

/// The beginning of a text for an error, in quotes and without control characters.
pub fn brief(text: &str) -> String {
    let mut short: String = text.chars().take(80).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

/// The entries of a header by their keys.
#[derive(Debug, Default)]
pub struct Entries(HashMap<String, Value>);

impl Entries {
    pub fn insert(&mut self, key: String, value: Value) -> Checked {
        match self.0.insert(key.clone(), value) {
            None => Ok(()),
            Some(_) => Err(format!("expected entries of different keys, got {key} twice")),
        }
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The entries that can be converted to text, for [`Tensors::metadata`](crate::io::Tensors).
    pub fn to_texts(&self) -> HashMap<String, String> {
        self.0.iter().filter_map(|(key, value)| Some((key.clone(), value.to_text()?))).collect()
    }
}

pub(super) struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    pub fn take(&mut self, count: u64) -> Checked<&'a [u8]> {
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

    pub fn u32(&mut self) -> Checked<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Checked<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads the key of an entry or the name of a tensor. Errors quote it, so it must be short.
    pub fn name(&mut self) -> Checked<String> {
        let name = self.text()?;
        if name.len() > MOST_NAME || name.chars().any(char::is_control) {
            let length = name.len();
            return Err(format!(
                "expected names of at most {MOST_NAME} bytes without control characters, got one \
                 of {length}"
            ));
        }
        Ok(name)
    }

    pub fn text(&mut self) -> Checked<String> {
        let length = self.u64()?;
        let bytes = self.take(length)?;
        if length > MOST_TEXT {
            return Err(format!("expected texts of at most {MOST_TEXT} bytes, got {length}"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "expected texts in UTF-8, got others")?;
        Ok(text.to_owned())
    }

    /// Reads a value whose type has a fixed size.
    fn scalar(&mut self, kind: u32, key: &str) -> Checked<Value> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            BOOL => Value::Bool(self.array::<1>()? != [0]),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            _ => return Err(format!("expected entries of a known type, got {kind} in {key}")),
        })
    }

    /// Reads the value of the entry `key`.
    pub fn value(&mut self, key: &str) -> Checked<Value> {
        let kind = self.u32()?;
        if kind == TEXT {
            return self.text().map(Value::Text);
        }
        if kind != LIST {
            return self.scalar(kind, key);
        }
        let (kind, count) = (self.u32()?, self.u64()?);
        let start = self.at;
        match kind {
            LIST => {
                return Err(format!(
                    "expected lists of numbers or texts, got one of lists in {key}"
                ));
            }
            TEXT => {
                for _ in 0..count {
                    let length = self.u64()?;
                    self.take(length)?;
                }
            }
            _ if count == 0 => {
                // Only checks the type.
                Cursor { bytes: &[0; 8], at: 0 }.scalar(kind, key)?;
            }
            _ => {
                self.scalar(kind, key)?;
                let size = (self.at - start) as u64;
                self.take(size.saturating_mul(count - 1))?;
            }
        }
        if count > MOST_LISTED && !key.starts_with("tokenizer.") {
            return Ok(Value::Long);
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let bytes = self.bytes.get(start..self.at).unwrap_or_default().into();
        Ok(Value::List(List { kind, count, bytes }))
    }
}
