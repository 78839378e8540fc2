//! Function constants. A declaration `constant T name [[function_constant(n)]];` reads its value
//! from a table at the beginning of the rewritten source. Each set of values is therefore compiled
//! separately.

use std::collections::BTreeMap;
use std::fmt::Write;

use mlx_primitives_build::front;

use super::{Constant, Purpose, Rewriter};

/// The text of the table of values, which comes before the rewritten source.
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
        for one in front::function_constants(&self.tokens) {
            let Some(index) = one.index else {
                self.remark(one.attribute, "function_constant needs a literal index");
                continue;
            };
            self.tokens.blank(one.attribute..one.range.end);
            self.tokens.list[one.attribute].text = match self.purpose {
                Purpose::Check => " = {}".to_string(),
                _ => format!(" = ::msl::function_constant<{}, {index}u>()", one.kind),
            };
            self.constants.push(Constant { index, name: one.name, optional: false });
        }
        for i in 0..self.tokens.len() {
            if self.tokens.at(i) == "is_function_constant_defined" && self.tokens.at(i + 1) == "(" {
                self.question(i);
            }
        }
    }

    fn question(&mut self, i: usize) {
        let end = self.tokens.close(i + 1);
        let name = self.tokens.at(i + 2).to_string();
        let Some(constant) = self.constants.iter_mut().find(|c| c.name == name) else {
            return;
        };
        constant.optional = true;
        let value = format!("::msl::ConstantValue<{}u>::defined", constant.index);
        let qualified = self.tokens.before(i) == "::" && i > 1 && self.tokens.at(i - 2) == "metal";
        self.tokens.blank(if qualified { i - 2 } else { i }..end + 1);
        self.tokens.list[i].text = value;
    }
}
