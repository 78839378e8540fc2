//! `threadgroup float x[32];` in a function: storage that the executor hands out.

use super::entries::SHARED;
use super::{Purpose, Rewriter};

impl Rewriter {
    pub(super) fn threadgroup_variables(&mut self) {
        let mut i = 0;
        while i < self.tokens.len() {
            let starts = self.tokens.at(i) == "threadgroup"
                && matches!(self.tokens.before(i), ";" | "{" | "}" | "static" | ")");
            if starts && !self.tokens.in_struct(i) {
                i = self.variable(i);
            } else {
                i += 1;
            }
        }
    }

    fn variable(&mut self, start: usize) -> usize {
        let mut at = start + 1;
        while !matches!(self.tokens.at(at), ";" | "=" | "[" | "," | "(" | "{" | "") {
            match self.tokens.at(at) {
                "*" | "&" => return at, // a pointer into threadgroup memory
                "<" => at = self.tokens.close(at),
                _ => {}
            }
            at += 1;
        }
        if !matches!(self.tokens.at(at), ";" | "=" | "[" | ",") {
            return at;
        }
        let mut end = at;
        while !matches!(self.tokens.at(end), ";" | "") {
            end = match self.tokens.at(end) {
                "(" | "[" | "{" => self.tokens.close(end) + 1,
                _ => end + 1,
            };
        }
        let (first, limit) = (self.kernels.first().map(|k| k.body.start), self.tokens.len());
        let in_kernel = self.kernels.iter().any(|kernel| kernel.body.contains(&start));
        if !in_kernel || first.is_none() || end >= limit {
            self.remark(start, "threadgroup variable outside a kernel function");
        }
        let kind = self.tokens.join(start + 1..at - 1);
        let mut declarations = String::new();
        let mut name = at - 1;
        while name < end {
            let mut after = name + 1;
            let mut extent = String::new(); // in parentheses, as it may compare with `>`
            while self.tokens.at(after) == "[" {
                let end = self.tokens.close(after);
                extent.push_str(&format!("[({})]", self.tokens.join(after + 1..end)));
                after = end + 1;
            }
            let word = self.tokens.at(name).to_string();
            let mut next = after;
            while next < end && self.tokens.at(next) != "," {
                next = match self.tokens.at(next) {
                    "(" | "[" | "{" => self.tokens.close(next) + 1,
                    _ => next + 1,
                };
            }
            if next > after {
                self.advise(
                    name,
                    format!("initializer on threadgroup variable '{word}' has no effect"),
                );
            }
            let serial = self.serial();
            declarations.push_str(&match self.purpose {
                Purpose::Run => format!(
                    "auto& {word} = ::msl::threadgroup_variable<{serial}, {kind} {extent}>(\"{word}\"); "
                ),
                Purpose::Gpu => {
                    format!("static {SHARED} {kind} {word} {extent}; ")
                }
                Purpose::Check => {
                    format!("static __attribute__((address_space(3))) {kind} {word} {extent}; ")
                }
            });
            name = next + 1;
        }
        if self.tokens.before(start) == "static" {
            self.tokens.blank(start - 1..start);
        }
        self.tokens.blank(start..end); // the semicolon stays
        self.tokens.list[start].text = declarations;
        end + 1
    }
}
