//! Reads the parameters of a kernel.

use std::ops::Range;

use super::{Fault, Source};
use crate::tokens::{SPACES, VALUES};

pub(super) enum Role {
    Buffer,
    Threadgroup,
    Value(&'static str),
}

pub(super) struct Parameter {
    pub(super) role: Role,
    pub(super) index: Option<u32>,
    pub(super) name: String,
    /// The type without address spaces, `const` and the last `*` or `&`.
    pub(super) base: String,
    pub(super) is_const: bool,
    pub(super) is_reference: bool,
}

/// The parameters in the parentheses at `open`.
pub(super) fn parameters(source: &Source, open: usize) -> Result<Vec<Parameter>, Fault> {
    let mut found = Vec::new();
    for range in source.tokens.split(open) {
        found.push(parameter(source, range)?);
    }
    // Metal numbers the parameters that have no index, in order.
    for is_buffer in [true, false] {
        let of_kind = |one: &Parameter| match one.role {
            Role::Buffer => is_buffer,
            Role::Threadgroup => !is_buffer,
            Role::Value(_) => false,
        };
        let mut next = 0;
        for i in 0..found.len() {
            if of_kind(&found[i]) && found[i].index.is_none() {
                while found.iter().any(|one| of_kind(one) && one.index == Some(next)) {
                    next += 1;
                }
                found[i].index = Some(next);
            }
        }
    }
    Ok(found)
}

fn parameter(source: &Source, range: Range<usize>) -> Result<Parameter, Fault> {
    let tokens = &source.tokens;
    let mut end = range.end;
    let (mut role, mut index) = (None, None);
    for i in range.clone() {
        if !tokens.is_attribute(i) {
            continue;
        }
        end = end.min(i);
        for part in tokens.split(i + 1) {
            let name = tokens.at(part.start);
            let number = || {
                let text = tokens.join(part.start + 2..part.end - 1);
                let text = text.trim_end_matches(['u', 'U']);
                text.parse().map_err(|_| source.fault(i, format!("the index {text} is no number")))
            };
            match name {
                "buffer" => (role, index) = (Some(Role::Buffer), Some(number()?)),
                "threadgroup" => (role, index) = (Some(Role::Threadgroup), Some(number()?)),
                "function_constant" | "maybe_unused" => {}
                _ => match VALUES.iter().find(|value| **value == name) {
                    Some(value) => role = Some(Role::Value(value)),
                    None => {
                        let text = format!("the attribute [[{name}]] is not supported on CUDA");
                        return Err(source.fault(i, text));
                    }
                },
            }
        }
    }
    let words: Vec<usize> = (range.start..end).filter(|&k| !tokens.at(k).is_empty()).collect();
    let (Some(&name), Some(&mark)) = (words.last(), words.iter().rev().nth(1)) else {
        return Err(source.fault(range.start, "a parameter without a type or a name"));
    };
    let indirect = matches!(tokens.at(mark), "*" | "&");
    let in_threadgroup = (range.start..mark).any(|k| tokens.at(k) == "threadgroup");
    let role = match role {
        Some(role) => role,
        None if in_threadgroup => Role::Threadgroup,
        None => Role::Buffer,
    };
    if indirect == matches!(role, Role::Value(_)) {
        let name = tokens.at(name);
        return Err(source.fault(range.start, format!("the parameter {name} cannot be read")));
    }
    let space_or_const = [SPACES[0], SPACES[1], SPACES[2], SPACES[3], "const", "volatile"];
    let is_const = (range.start..mark).any(|k| matches!(tokens.at(k), "const" | "constant"));
    let base_end = if indirect { mark } else { name };
    Ok(Parameter {
        role,
        index,
        name: tokens.at(name).to_owned(),
        base: tokens.join_without(range.start..base_end, &space_or_const).trim().to_owned(),
        is_const,
        is_reference: indirect && tokens.at(mark) == "&",
    })
}

impl Parameter {
    /// The type that the parameter points or refers to.
    pub(super) fn target(&self) -> String {
        format!("{}{}", if self.is_const { "const " } else { "" }, self.base)
    }

    /// The declaration of the parameter from an expression for its address.
    pub(super) fn declared(&self, address: &str) -> String {
        let (target, name) = (self.target(), &self.name);
        match self.is_reference {
            true => format!("{target}& {name} = *({target}*)({address}); "),
            false => format!("{target}* {name} = ({target}*)({address}); "),
        }
    }
}
