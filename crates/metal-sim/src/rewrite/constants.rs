//! Function constants: `constant T name [[function_constant(n)]];` gets its value from a
//! table at the head of the source, so each set of values is a separate compilation.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Purpose, Rewriter};

/// A function constant that a library declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    /// The `n` of `[[function_constant(n)]]`.
    pub index: u32,
    /// Its name in the source.
    pub name: String,
    /// Whether the source asks `is_function_constant_defined`, so that it may be left out.
    pub optional: bool,
}

/// The table of values, as the head of a rewritten source.
pub(crate) fn prologue(values: &BTreeMap<u32, u64>) -> String {
    let mut text = String::from(
        "namespace msl { template <unsigned N> struct ConstantValue { \
         static constexpr bool defined = false; static constexpr unsigned long bits = 0; }; ",
    );
    for (index, bits) in values {
        let _ = write!(
            text,
            "template <> struct ConstantValue<{index}u> {{ static constexpr bool defined = true; \
             static constexpr unsigned long bits = {bits}ul; }}; ",
        );
    }
    text.push_str("}\n");
    text
}

impl Rewriter {
    pub(super) fn function_constants(&mut self) {
        for i in 0..self.tokens.len() {
            let declares = self.tokens.is_attribute(i)
                && self.tokens.at(i + 2) == "function_constant"
                && self.tokens.at(self.tokens.close(i) + 1) == ";";
            if declares {
                self.declaration(i);
            }
        }
        for i in 0..self.tokens.len() {
            if self.tokens.at(i) == "is_function_constant_defined" && self.tokens.at(i + 1) == "(" {
                self.question(i);
            }
        }
    }

    fn declaration(&mut self, attribute: usize) {
        let end = self.tokens.close(attribute);
        let Ok(index) = self.tokens.at(attribute + 4).parse::<u32>() else {
            self.remark(attribute, "function_constant needs a literal index");
            return;
        };
        let name = self.tokens.before(attribute).to_string();
        let mut start = attribute - 1;
        while start > 0 && !matches!(self.tokens.before(start), ";" | "{" | "}") {
            start -= 1;
        }
        let words = (start..attribute - 1)
            .filter(|&i| !matches!(self.tokens.at(i), "constant" | "const" | "static"));
        let kind = words.map(|i| self.tokens.at(i).to_string()).collect::<Vec<_>>().join(" ");
        self.tokens.blank(attribute..end + 1);
        if self.purpose == Purpose::Check {
            self.tokens.list[attribute].text = " = {}".to_string();
        } else {
            self.tokens.list[attribute].text =
                format!(" = ::msl::function_constant<{kind}, {index}u>()");
        }
        self.constants.push(Constant { index, name, optional: false });
    }

    fn question(&mut self, i: usize) {
        let end = self.tokens.close(i + 1);
        let name = self.tokens.at(i + 2).to_string();
        let Some(constant) = self.constants.iter_mut().find(|c| c.name == name) else {
            return;
        };
        constant.optional = true;
        let value = format!("::msl::ConstantValue<{}u>::defined", constant.index);
        self.tokens.blank(i..end + 1);
        self.tokens.list[i].text = value;
    }
}
