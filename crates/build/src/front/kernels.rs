//! Kernels, their parameters, and the explicit instantiations of kernel templates.

use std::ops::Range;

use super::functions::{Function, functions};
use super::tokens::{SPACES, Tokens, VALUES};

/// The resource or value that a parameter is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Buffer,
    Threadgroup,
    /// A row of [`VALUES`].
    Value(usize),
}

/// One `[[name(argument)]]`.
#[derive(Clone, Debug)]
pub struct Attribute {
    pub name: String,
    pub argument: Option<String>,
    /// The token that is the name.
    pub at: usize,
}

#[derive(Clone, Debug)]
pub struct Parameter {
    pub range: Range<usize>,
    pub attributes: Vec<Attribute>,
    pub name: String,
    /// The type without address space, `const`, and the last `*` or `&`.
    pub base: String,
    /// The last `*`, `&` or `[` of the declaration; empty for a value.
    pub mark: String,
    pub space: Option<&'static str>,
    /// Whether the parameter points to constant data.
    pub is_const: bool,
    pub role: Role,
    /// Whether an attribute states the role.
    pub is_explicit: bool,
    /// The index of the attribute: a number, or an expression that the compiler evaluates.
    pub index: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Kernel {
    pub name: String,
    pub is_template: bool,
    /// The tokens from `template` or the first attribute up to the end of the body.
    pub all: Range<usize>,
    /// The attributes before the return type.
    pub attributes: Range<usize>,
    /// The parenthesis that opens the list of parameters.
    pub open: usize,
    pub parameters: Vec<Parameter>,
    pub body: Range<usize>,
    pub host_name: Option<String>,
    pub max_threads: Option<String>,
}

/// An explicit instantiation, such as `template [[host_name("x")]] [[kernel]] decltype(f<T>) f<T>;`
/// or `template [[host_name("x")]] [[kernel]] void f<T>(...);`.
pub struct Instance {
    pub host_name: String,
    /// The template.
    pub function: String,
    /// The template and its arguments, as an expression without address spaces.
    pub expression: String,
    pub attributes: Range<usize>,
    /// The semicolon.
    pub end: usize,
}

/// Returns the attributes in a range of tokens.
pub fn attributes(tokens: &Tokens, range: Range<usize>) -> Vec<Attribute> {
    let brackets = range.filter(|&i| tokens.is_attribute(i));
    let parts = brackets.flat_map(|i| tokens.split(i + 1));
    let attribute = |part: Range<usize>| Attribute {
        name: tokens.at(part.start).to_owned(),
        argument: (part.len() > 3).then(|| tokens.join(part.start + 2..part.end - 1)),
        at: part.start,
    };
    parts.map(attribute).collect()
}

fn argument(attributes: &[Attribute], name: &str) -> Option<String> {
    attributes.iter().find(|one| one.name == name).and_then(|one| one.argument.clone())
}

/// Joins the text of adjacent string literals.
fn unquoted(literals: String) -> String {
    literals.split('"').skip(1).step_by(2).collect()
}

/// Returns the index of the token after the attributes that begin at `at`. The word `kernel` counts
/// as an attribute.
fn after_attributes(tokens: &Tokens, mut at: usize) -> usize {
    while tokens.at(at) == "kernel" || tokens.is_attribute(at) {
        at = if tokens.at(at) == "kernel" { at } else { tokens.close(at) } + 1;
    }
    at
}

/// Returns the kernels that the source defines. Kernels that it only declares are left out.
pub fn kernels(tokens: &Tokens) -> Vec<Kernel> {
    let all = functions(tokens).into_iter().filter(|function| function.is_kernel);
    all.map(|function| kernel(tokens, function)).collect()
}

fn kernel(tokens: &Tokens, function: Function) -> Kernel {
    let begins =
        |i: &usize| matches!(tokens.at(*i), "template" | "kernel") || tokens.is_attribute(*i);
    let first = (function.start..function.at).find(begins).unwrap_or(function.start);
    let is_template = tokens.at(first) == "template";
    let start = if is_template { tokens.close(first + 1) + 1 } else { first };
    let end = after_attributes(tokens, start);
    let found = attributes(tokens, start..end);
    Kernel {
        name: function.name,
        is_template,
        all: first..function.body.end + 1,
        attributes: start..end,
        open: function.at + 1,
        parameters: parameters(tokens, function.parameters),
        body: function.body,
        host_name: argument(&found, "host_name").map(unquoted),
        max_threads: argument(&found, "max_total_threads_per_threadgroup"),
    }
}

fn parameters(tokens: &Tokens, ranges: Vec<Range<usize>>) -> Vec<Parameter> {
    let ranges = ranges.into_iter().filter(|range| tokens.join(range.clone()) != "void");
    let mut found: Vec<Parameter> = ranges.map(|range| parameter(tokens, range)).collect();
    // Metal assigns the free indices to parameters without an index, in the order of their
    // declaration.
    for role in [Role::Buffer, Role::Threadgroup] {
        let mut numbers = 0u32..;
        for i in 0..found.len() {
            if found[i].role == role && found[i].index.is_none() {
                let is_free = |index: &String| {
                    !found.iter().any(|one| one.role == role && one.index.as_ref() == Some(index))
                };
                found[i].index = numbers.by_ref().map(|number| number.to_string()).find(is_free);
            }
        }
    }
    found
}

fn parameter(tokens: &Tokens, range: Range<usize>) -> Parameter {
    let attributes = attributes(tokens, range.clone());
    let (mut role, mut index) = (None, None);
    for one in &attributes {
        match one.name.as_str() {
            "buffer" => (role, index) = (Some(Role::Buffer), one.argument.clone()),
            "threadgroup" => (role, index) = (Some(Role::Threadgroup), one.argument.clone()),
            name => role = VALUES.iter().position(|value| *value == name).map(Role::Value).or(role),
        }
    }
    let end = range.clone().find(|&i| tokens.is_attribute(i)).unwrap_or(range.end);
    let bracket = (range.start..end).find(|&i| tokens.at(i) == "[");
    let named = bracket.unwrap_or(end).max(range.start + 1) - 1;
    let pointer = (range.start..named).rev().find(|&i| matches!(tokens.at(i), "*" | "&"));
    let of_type = range.start..pointer.unwrap_or(named);
    let space = SPACES.into_iter().find(|space| of_type.clone().any(|i| tokens.at(i) == *space));
    let in_threadgroup = space == Some("threadgroup");
    let without = [&SPACES[..], &["const", "volatile"]].concat();
    Parameter {
        attributes,
        name: tokens.at(named).to_owned(),
        base: tokens.join_without(of_type.clone(), &without).trim().to_owned(),
        mark: tokens.at(bracket.or(pointer).unwrap_or(usize::MAX)).to_owned(),
        space,
        is_const: of_type.clone().any(|i| matches!(tokens.at(i), "const" | "constant")),
        role: role.unwrap_or(if in_threadgroup { Role::Threadgroup } else { Role::Buffer }),
        is_explicit: role.is_some(),
        index: index.map(|text| match text.trim_end_matches(['u', 'U']).parse::<u32>() {
            Ok(number) => number.to_string(),
            Err(_) => text,
        }),
        range,
    }
}

impl Parameter {
    pub fn is_indirect(&self) -> bool {
        !self.mark.is_empty()
    }

    /// Returns the parameter's type without its address space.
    fn plain_type(&self) -> String {
        let mark = if self.mark == "[" { "*" } else { &self.mark };
        format!("{}{}{mark}", if self.is_const { "const " } else { "" }, self.base)
    }

    /// Returns the argument of the attribute with this name.
    pub fn argument(&self, name: &str) -> Option<String> {
        argument(&self.attributes, name)
    }
}

/// Parses the instantiation that begins at token `template`. Returns `None` if it has no
/// `host_name`.
pub fn instance(tokens: &Tokens, template: usize) -> Option<Instance> {
    let start = template + 1;
    let end = after_attributes(tokens, start);
    let host_name = unquoted(argument(&attributes(tokens, start..end), "host_name")?);
    let first = if tokens.at(end) == "decltype" { tokens.close(end + 1) + 1 } else { end + 1 };
    let (mut at, mut function) = (first, "");
    while !matches!(tokens.at(at), "(" | ";" | "") {
        if tokens.at(at) == "<" {
            function = tokens.before(at);
            at = tokens.close(at);
        }
        at += 1;
    }
    let mut expression = tokens.join_without(first..at, &SPACES);
    if function.is_empty() {
        function = tokens.before(at); // the parameters determine the template arguments
        let parameters = parameters(tokens, tokens.split(at));
        let types: Vec<String> = parameters.iter().map(Parameter::plain_type).collect();
        expression = format!("*static_cast<void (*)({})>({function})", types.join(", "));
    }
    let last = (at..tokens.len()).find(|&i| matches!(tokens.at(i), ";" | ""));
    Some(Instance {
        host_name,
        function: function.to_owned(),
        expression,
        attributes: start..end,
        end: last.unwrap_or(tokens.len() - 1),
    })
}
