//! The arguments of a call.

use super::budget::{Outcome, fault};
use super::python::described;
use super::syntax::Name;
use super::value::Value;

/// The positional and the named arguments of a call.
pub struct Arguments {
    pub positional: Vec<Value>,
    pub named: Vec<(Name, Value)>,
}

impl Arguments {
    /// Assigns the arguments to the parameters of a function. The first `needed` parameters are
    /// required.
    pub fn bind<const N: usize>(
        self,
        function: &str,
        parameters: [&str; N],
        needed: usize,
    ) -> Outcome<[Option<Value>; N]> {
        let mut bound: [Option<Value>; N] = std::array::from_fn(|_| None);
        if self.positional.len() > N {
            let got = self.positional.len();
            return fault(format_args!("at most {N} arguments of {function}, got {got}"));
        }
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            let at = parameters.iter().position(|parameter| *parameter == &*name);
            match at.and_then(|at| bound.get_mut(at)) {
                Some(slot @ None) => *slot = Some(value),
                Some(_) => return fault(format_args!("{name:?} of {function} twice")),
                None => return fault(format_args!("no argument {name:?} of {function}")),
            }
        }
        match bound.iter().take(needed).zip(parameters).find(|(slot, _)| slot.is_none()) {
            Some((_, name)) => fault(format_args!("{name:?} of {function}, which is missing")),
            None => Ok(bound),
        }
    }
}

/// Returns an argument as an integer, or `default` if the argument is missing.
pub fn integer(value: Option<&Value>, default: i128) -> Outcome<i128> {
    match value {
        None => Ok(default),
        Some(value) => match value.as_int() {
            Some(value) => Ok(value),
            None => fault(format_args!("an integer, got {}", described(value))),
        },
    }
}

/// Returns an argument as a count, or `default` if the argument is missing. A negative number
/// becomes 0.
pub fn count(value: Option<&Value>, default: usize) -> Outcome<usize> {
    let value = integer(value, default as i128)?;
    Ok(usize::try_from(value.max(0)).unwrap_or(usize::MAX))
}

/// Returns an argument as a string; `None` if the argument is missing or Python's `None`.
pub fn text<'a>(value: &'a Option<Value>, name: &str) -> Outcome<Option<&'a str>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(Value::Text(text)) => Ok(Some(&text.text)),
        Some(other) => fault(format_args!("a text for {name}, got {}", described(other))),
    }
}
