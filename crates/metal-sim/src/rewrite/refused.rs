//! Finds kernels that need resources which the simulator does not have. The library lists their
//! names and removes them, so that the other kernels of a source can run.

use std::collections::HashSet;

use mlx_primitives_build::front::{self, Kernel};

use super::Rewriter;

/// Types that stand for a resource other than memory, and the text for each resource in messages.
const RESOURCES: [(&str, &str); 8] = [
    ("sampler", "a sampler"),
    ("command_buffer", "an indirect command buffer"),
    ("compute_command", "an indirect command"),
    ("render_command", "an indirect command"),
    ("visible_function_table", "a function table"),
    ("intersection_function_table", "a function table"),
    ("compute_pipeline_state", "a pipeline state"),
    ("tensor", "a tensor"),
];

/// Returns the text for the resource that a type name stands for, if any.
fn resource(word: &str) -> Option<&'static str> {
    let texture = ["texture", "depth"].iter().find_map(|start| word.strip_prefix(start));
    if texture.is_some_and(|rest| {
        ["1d", "2d", "3d", "cube", "_buffer"].iter().any(|it| rest.starts_with(it))
    }) {
        return Some("a texture");
    }
    if word.ends_with("acceleration_structure") {
        return Some("an acceleration structure");
    }
    RESOURCES.iter().find(|(name, _)| *name == word).map(|(_, what)| *what)
}

impl Rewriter {
    /// Returns the reason why a kernel cannot run, if any.
    pub(super) fn reason(
        &self,
        kernel: &Kernel,
        argument_buffers: &HashSet<String>,
    ) -> Option<String> {
        let of = |words: &[&str]| {
            let found = words.iter().find_map(|word| resource(word));
            let is_table = || words.iter().any(|word| argument_buffers.contains(*word));
            found.or_else(|| is_table().then_some("an argument buffer"))
        };
        kernel.parameters.iter().find_map(|parameter| {
            let end = parameter.range.clone().find(|&i| self.tokens.is_attribute(i));
            let last = end.unwrap_or(parameter.range.end).saturating_sub(1);
            let words: Vec<&str> =
                (parameter.range.start..last).map(|i| self.tokens.at(i)).collect();
            let what = of(&words)?;
            let (file, line) = self.tokens.place(parameter.range.start);
            Some(format!("takes {what}, '{}' at {file}:{line}", parameter.name))
        })
    }

    /// Removes functions that take a texture or a sampler. Only kernels that cannot run call them.
    pub(super) fn texture_functions(&mut self) {
        for function in front::functions(&self.tokens) {
            let mut words = function.parameters.iter().cloned().flatten();
            let takes = words.any(|i| {
                let what = resource(self.tokens.at(i));
                let is_type =
                    matches!(self.tokens.at(i + 1), "<" | "&") || self.tokens.is_word(i + 1);
                is_type && matches!(what, Some("a texture" | "a sampler"))
            });
            if takes && !function.is_kernel {
                self.tokens.blank(function.start..function.body.end + 1);
            }
        }
    }

    /// The structs that hold pointers to buffers, or resources with an `[[id(n)]]`.
    pub(super) fn argument_buffers(&self) -> HashSet<String> {
        let tokens = &self.tokens;
        let structs = (1..tokens.len()).filter(|&i| {
            tokens.at(i) == "{" && tokens.is_word(i - 1) && i > 1 && tokens.at(i - 2) == "struct"
        });
        let holds = |&open: &usize| {
            let (mut at, end) = (open + 1, tokens.close(open));
            while at < end {
                match tokens.at(at) {
                    "(" | "{" => at = tokens.close(at),
                    "[" if tokens.is_attribute(at) && tokens.at(at + 2) == "id" => return true,
                    "*" if self.member_space(at) => return true,
                    _ => {}
                }
                at += 1;
            }
            false
        };
        structs.filter(holds).map(|open| tokens.at(open - 1).to_owned()).collect()
    }

    /// Whether the `*` at `star` declares a struct's member that points to a buffer.
    fn member_space(&self, star: usize) -> bool {
        let words = (0..star).rev().map(|i| self.tokens.at(i));
        let mut declaration =
            words.take_while(|word| !matches!(*word, ";" | "{" | "}" | "=" | ")"));
        let end = self.tokens.at(star + 2);
        (end == ";" || end == "[") && declaration.any(|word| matches!(word, "device" | "constant"))
    }
}
