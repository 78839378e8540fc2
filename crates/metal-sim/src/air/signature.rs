//! Reads the table of kernel arguments that Apple's compiler writes into a module's metadata.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::module::{Argument, ArgumentKind, Value};
use crate::rewrite::BUILTINS;

/// The source of a compiled kernel's parameter: memory that is bound to the kernel, or a built-in
/// value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parameter {
    Memory(Argument),
    /// A built-in value, with the parameter's name and the value's index in [`BUILTINS`].
    Value(String, usize),
}

/// A compiled kernel's parameters, and the function constants of its module.
#[derive(Clone)]
pub(super) struct Signature {
    pub(super) parameters: Vec<Parameter>,
    /// The name of each function constant's variable, by the index of the constant.
    pub(super) constants: BTreeMap<u32, String>,
}

impl Signature {
    /// Reads the signatures of all kernels in a module, each with the name of the kernel's
    /// function.
    pub(super) fn all(text: &str) -> Result<Vec<(String, Self)>> {
        let nodes: BTreeMap<&str, &str> = text
            .lines()
            .filter(|line| line.starts_with('!'))
            .filter_map(|line| line.split_once(" = "))
            .collect();
        let items = |name: &str| -> Vec<&str> {
            let node = nodes.get(name).copied().unwrap_or_default();
            let inner = node.strip_prefix("!{").and_then(|node| node.strip_suffix('}'));
            inner.filter(|inner| !inner.is_empty()).map_or(Vec::new(), |s| s.split(", ").collect())
        };
        let mut constants = BTreeMap::new();
        for node in items("!air.function_constants") {
            let node = items(node);
            let variable = node.first().and_then(|first| first.split_once('@'));
            if let (Some((_, variable)), Some(index)) = (variable, node.get(3).and_then(number)) {
                constants.insert(index, variable.to_string());
            }
        }
        let mut all = Vec::new();
        for kernel in items("!air.kernel") {
            let kernel = items(kernel);
            let function = kernel.first().and_then(|first| first.strip_prefix("ptr @"));
            let name = function.ok_or_else(|| {
                Error::Load("a kernel is no 'ptr': LLVM 15 or later has to write it".to_string())
            })?;
            let table = kernel.get(2).copied().unwrap_or_default();
            let parameters: Result<Vec<_>> =
                items(table).into_iter().map(|node| parameter(&items(node))).collect();
            let signature = Signature { parameters: parameters?, constants: constants.clone() };
            all.push((name.to_string(), signature));
        }
        Ok(all)
    }

    pub(super) fn arguments(&self) -> Vec<Argument> {
        let memory = self.parameters.iter().filter_map(|parameter| match parameter {
            Parameter::Memory(argument) => Some(argument.clone()),
            Parameter::Value(..) => None,
        });
        memory.collect()
    }

    pub(super) fn values(&self) -> Vec<Value> {
        let values = self.parameters.iter().filter_map(|parameter| match parameter {
            Parameter::Memory(_) => None,
            Parameter::Value(name, row) => {
                Some(Value { name: name.clone(), builtin: BUILTINS[*row] })
            }
        });
        values.collect()
    }
}

/// Parses the number of an item: 7 for `i32 7`.
fn number(item: &&str) -> Option<u32> {
    item.split_once(' ').and_then(|(_, digits)| digits.parse().ok())
}

fn string<'a>(item: &'a &str) -> Option<&'a str> {
    item.strip_prefix("!\"").and_then(|item| item.strip_suffix('"'))
}

fn parameter(items: &[&str]) -> Result<Parameter> {
    let find = |key: &str| items.iter().position(|item| string(item) == Some(key));
    let after = |key: &str| find(key).and_then(|i| items.get(i + 1));
    let count = |key: &str| after(key).and_then(number).unwrap_or_default();
    let name = after("air.arg_name").and_then(string).unwrap_or_default().to_string();
    let role = items.get(1).and_then(string).unwrap_or_default();
    let role = role.strip_prefix("air.").unwrap_or(role);
    if role == "buffer" || role == "indirect_buffer" {
        let kind = match count("air.address_space") {
            3 => ArgumentKind::Threadgroup,
            _ => ArgumentKind::Buffer,
        };
        let written = find("air.read_write").or(find("air.write")).is_some();
        return Ok(Parameter::Memory(Argument {
            kind,
            index: count("air.location_index"),
            name,
            writable: written && kind == ArgumentKind::Buffer,
            required: true,
            size: count("air.arg_type_size"),
            align: count("air.arg_type_align_size"),
        }));
    }
    match BUILTINS.iter().position(|builtin| *builtin == role) {
        Some(row) => Ok(Parameter::Value(name, row)),
        None => Err(Error::Load(format!("a parameter of the unknown kind '{role}'"))),
    }
}
