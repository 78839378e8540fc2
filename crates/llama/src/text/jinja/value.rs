//! The values of a template, which represent Python values. Only namespaces are mutable, apart from
//! the positions of generators and the state of loops.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use super::budget::{Budget, Buffer, Charge, Items, MOST_NESTED, Outcome, fault};
use super::syntax::{Definition, Loop, Name};

#[derive(Clone)]
pub enum Value {
    /// An undefined value, with the name that the template used.
    Undefined(Name),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Rc<Text>),
    Bytes(Rc<Text>),
    Sequence(Rc<Sequence>),
    Dict(Rc<Dict>),
    /// Start, end and step.
    Range(Rc<[i128; 3]>),
    Namespace(Rc<Namespace>),
    Macro(Rc<Macro>),
    Loop(Rc<LoopState>),
    /// A method, bound to the value that it belongs to.
    Method(Rc<(Value, Name)>),
    /// A global function, by its name.
    Function(&'static str),
}

pub struct Text {
    pub text: String,
    _charge: Charge,
}

/// The type of a sequence in Python.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SequenceKind {
    List,
    Tuple,
    /// A group that `groupby` returns. It is a tuple with named items.
    Group,
    /// `Keys`, `Values` and `Items` are the results of the dictionary methods of the same names.
    Keys,
    Values,
    Items,
    /// A generator, whose items can be consumed only once.
    Generator,
}

pub struct Sequence {
    pub kind: SequenceKind,
    pub items: Vec<Value>,
    /// The number of items of a generator that have been consumed.
    pub used: Cell<usize>,
    depth: u32,
    _charge: Charge,
}

pub struct Dict {
    pub fields: Vec<(Value, Value)>,
    depth: u32,
    _charge: Charge,
}

pub struct Namespace {
    pub fields: RefCell<Vec<(Name, Value)>>,
    pub charge: RefCell<Vec<Charge>>,
}

pub struct Macro {
    pub definition: Rc<Definition>,
    pub scope: Weak<Scope>,
    /// Keeps the scope of a `caller` alive during the call.
    pub _caller: Option<Rc<Scope>>,
    pub _charge: Charge,
}

/// The variables of a block, and the enclosing scope.
pub struct Scope {
    pub names: RefCell<Vec<(Name, Value)>>,
    pub parent: Option<Rc<Scope>>,
    pub _charge: Charge,
}

pub struct LoopState {
    pub items: Rc<Sequence>,
    pub index: Cell<usize>,
    pub depth: usize,
    pub changed: RefCell<Option<Value>>,
    /// If the loop is recursive, the loop and its enclosing scope.
    pub recursive: Option<(Rc<Loop>, Weak<Scope>)>,
    pub _charge: Charge,
}

impl Value {
    pub fn text(budget: &Budget, text: &str) -> Outcome<Self> {
        let mut buffer = Buffer::new(budget)?;
        buffer.push(text)?;
        Ok(Self::of(buffer))
    }

    pub fn of(buffer: Buffer) -> Self {
        let (text, _charge) = buffer.into_parts();
        Self::Text(Rc::new(Text { text, _charge }))
    }

    pub fn bytes(budget: &Budget, text: &str) -> Outcome<Self> {
        let mut buffer = Buffer::new(budget)?;
        buffer.push(text)?;
        let (text, _charge) = buffer.into_parts();
        Ok(Self::Bytes(Rc::new(Text { text, _charge })))
    }

    pub fn sequence(kind: SequenceKind, items: Items<Self>) -> Outcome<Self> {
        let depth = deeper(items.items().iter())?;
        let (items, _charge) = items.into_parts();
        let used = Cell::new(0);
        Ok(Self::Sequence(Rc::new(Sequence { kind, items, used, depth, _charge })))
    }

    /// Makes a sequence from the given values.
    pub fn collect(
        budget: &Budget,
        kind: SequenceKind,
        values: impl IntoIterator<Item = Self>,
    ) -> Outcome<Self> {
        let mut items = Items::new(budget)?;
        for value in values {
            items.push(value)?;
        }
        Self::sequence(kind, items)
    }

    pub fn dict(fields: Items<(Self, Self)>) -> Outcome<Self> {
        let depth = deeper(fields.items().iter().flat_map(|(key, value)| [key, value]))?;
        let (fields, _charge) = fields.into_parts();
        Ok(Self::Dict(Rc::new(Dict { fields, depth, _charge })))
    }

    /// Returns the nesting depth of a value: 0 for a string or a number, 1 for a list of these.
    /// A namespace could contain itself. To prevent this, only a variable may have a namespace as
    /// its value.
    fn depth(&self) -> Outcome<u32> {
        match self {
            Self::Sequence(sequence) => Ok(sequence.depth),
            Self::Dict(dict) => Ok(dict.depth),
            Self::Method(method) => Ok(method.0.depth()?.saturating_add(1)),
            Self::Namespace(_) | Self::Macro(_) | Self::Loop(_) => fault(format_args!(
                "a {} within another value, which is not supported",
                self.kind()
            )),
            _ => Ok(0),
        }
    }

    /// Returns a fault if this value may not be an item of another value.
    pub fn holdable(&self) -> Outcome<()> {
        self.depth().map(drop)
    }

    pub fn method(of: &Self, name: &Name) -> Self {
        Self::Method(Rc::new((of.clone(), Rc::clone(name))))
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(&text.text),
            _ => None,
        }
    }

    /// Returns the number that an integer or a boolean represents.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    pub fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// Whether Python treats a value as true.
    pub fn truth(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) | Self::Bytes(text) => !text.text.is_empty(),
            Self::Sequence(s) => s.kind == SequenceKind::Generator || !s.items.is_empty(),
            Self::Dict(dict) => !dict.fields.is_empty(),
            Self::Range(range) => range_length(range) > 0,
            _ => true,
        }
    }

    /// The name of the type in Python.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::Bytes(_) => "bytes",
            Self::Sequence(sequence) => match sequence.kind {
                SequenceKind::List => "list",
                SequenceKind::Tuple | SequenceKind::Group => "tuple",
                SequenceKind::Keys => "dict_keys",
                SequenceKind::Values => "dict_values",
                SequenceKind::Items => "dict_items",
                SequenceKind::Generator => "generator",
            },
            Self::Dict(_) => "dict",
            Self::Range(_) => "range",
            Self::Namespace(_) => "namespace",
            Self::Macro(_) => "macro",
            Self::Loop(_) => "loop",
            Self::Method(_) => "method",
            Self::Function(_) => "function",
        }
    }
}

fn deeper<'a>(mut values: impl Iterator<Item = &'a Value>) -> Outcome<u32> {
    let depth = values.try_fold(0, |depth: u32, value| Ok(depth.max(value.depth()?)))?;
    match depth < MOST_NESTED {
        true => Ok(depth + 1),
        false => fault(format_args!("values nested more than {MOST_NESTED} times")),
    }
}

/// The number of values in a range.
pub fn range_length(&[start, end, step]: &[i128; 3]) -> usize {
    let (from, to, by) = if step > 0 { (start, end, step) } else { (end, start, -step) };
    let distance = to.saturating_sub(from);
    if distance <= 0 { 0 } else { usize::try_from((distance - 1) / by + 1).unwrap_or(usize::MAX) }
}

impl Namespace {
    pub fn get(&self, name: &str) -> Option<Value> {
        let fields = self.fields.borrow();
        fields.iter().find(|(field, _)| &**field == name).map(|(_, value)| value.clone())
    }
}
