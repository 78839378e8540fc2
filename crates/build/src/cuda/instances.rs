//! Finds the explicit instantiations of kernels, such as `template [[host_name("x")]] [[kernel]]
//! decltype(f<T>) f<T>;`. A macro may contain them, so this module expands such macros. It also
//! expands macros that stand for parameters of kernels.

use std::path::Path;

use super::request::Fault;
use super::{comments, loops};
use crate::front::{Instance, Kind, Tokens, instance};

/// The tokens of a source, and the macros that the source defines.
pub(super) struct Source {
    pub(super) tokens: Tokens,
    macros: Macros,
}

impl Source {
    pub(super) fn parse(source: &str) -> Self {
        let text = comments::without(source);
        let macros = Macros::find(&text);
        let text = loops::pragmas(&macros.removed_from(&text));
        Self { tokens: macros.tokens(&text), macros }
    }

    pub(super) fn fault(&self, at: usize, text: impl Into<String>) -> Fault {
        let (file, line) = self.tokens.place(at);
        Fault { file, line, text: text.into() }
    }
}

/// A function-like macro, or a macro without arguments that stands for kernel parameters.
struct Macro {
    name: String,
    is_function: bool,
    parameters: Vec<String>,
    variadic: bool,
    body: Tokens,
    lines: std::ops::Range<usize>,
}

/// The macros of a source.
struct Macros(Vec<Macro>);

impl Macros {
    pub(super) fn find(text: &str) -> Self {
        let mut found = Vec::new();
        let lines: Vec<&str> = text.lines().collect();
        let mut at = 0;
        while at < lines.len() {
            let start = at;
            let mut whole = lines[at].trim_end_matches('\\').to_owned();
            while lines[at].ends_with('\\') && at + 1 < lines.len() {
                at += 1;
                whole.push(' ');
                whole.push_str(lines[at].trim_end_matches('\\'));
            }
            at += 1;
            found.extend(parse(&whole, start..at));
        }
        Self(found)
    }

    /// Returns the text without the definitions of macros that instantiate kernels or stand for
    /// parameters. All other lines keep their numbers.
    pub(super) fn removed_from(&self, text: &str) -> String {
        let used = |one: &Macro| one.is_parameters() || self.instantiates(one, 0);
        let gone = |line: usize| self.0.iter().any(|one| one.lines.contains(&line) && used(one));
        let mut out = String::new();
        for (i, line) in text.lines().enumerate() {
            if !gone(i) {
                out.push_str(line);
            }
            out.push('\n');
        }
        out
    }

    /// Returns the tokens of the source after expanding macros that stand for parameters.
    pub(super) fn tokens(&self, text: &str) -> Tokens {
        let mut tokens = Tokens::parse(text, Path::new("\0"));
        for token in &mut tokens.list {
            let of_name = |one: &&Macro| one.name == token.text && one.is_parameters();
            if let Some(one) = self.0.iter().rev().find(of_name) {
                token.text = one.body.text();
            }
        }
        // `parse` does not split the text of files in the folder that it is given. No file is in a
        // folder `\0`, so `parse` splits all text.
        Tokens::parse(&tokens.text(), Path::new("\0"))
    }

    /// Returns the macro of this name if it instantiates kernels, directly or through another
    /// macro.
    fn get(&self, name: &str) -> Option<&Macro> {
        self.0.iter().rev().find(|one| one.name == name && self.instantiates(one, 0))
    }

    fn instantiates(&self, one: &Macro, depth: u32) -> bool {
        let words = || one.body.list.iter().filter(|token| token.kind == Kind::Word);
        // The body may use a parameter as the name of a macro, and that macro may instantiate
        // kernels.
        let calls = (0..one.body.len()).any(|i| {
            one.body.at(i + 1) == "(" && one.parameters.iter().any(|name| name == one.body.at(i))
        });
        let nested = |name: &str| {
            let known = self.0.iter().find(|other| other.name == name && other.name != one.name);
            depth < 16 && known.is_some_and(|other| self.instantiates(other, depth + 1))
        };
        one.is_function
            && (calls || words().any(|word| word.text == "host_name" || nested(&word.text)))
    }

    /// Expands a call of a macro with these arguments, including nested macros.
    fn expand(&self, called: &Macro, mut arguments: Vec<String>, depth: u32) -> String {
        let rest = arguments.split_off(called.parameters.len().min(arguments.len()));
        let value = |word: &str| match called.parameters.iter().position(|name| name == word) {
            Some(i) => arguments.get(i).cloned(),
            None if called.variadic && word == "__VA_ARGS__" => Some(rest.join(", ")),
            None => None,
        };
        let mut text = String::new();
        let mut i = 0;
        while i < called.body.len() {
            let word = called.body.at(i);
            let next = value(called.body.at(i + 1));
            match (word, next) {
                ("#", Some(value)) if called.body.at(i + 1) != "#" => {
                    text.push_str(&format!(" {value:?}"));
                    i += 1;
                }
                _ => {
                    if !called.body.list[i].before.is_empty() {
                        text.push(' ');
                    }
                    text.push_str(&value(word).unwrap_or_else(|| word.to_owned()));
                }
            }
            i += 1;
        }
        self.expand_all(&text, depth + 1)
    }

    /// Expands all calls of macros that instantiate kernels.
    fn expand_all(&self, text: &str, depth: u32) -> String {
        let tokens = Tokens::parse(text, Path::new("\0"));
        let mut out = String::new();
        let mut i = 0;
        while i < tokens.len() {
            if tokens.at(i + 1) == "("
                && depth < 16
                && let Some(called) = self.get(tokens.at(i))
            {
                out.push(' ');
                out.push_str(&self.expand(called, arguments(&tokens, i + 1), depth));
                i = tokens.close(i + 1) + 1;
                continue;
            }
            out.push_str(&tokens.list[i].before);
            out.push_str(tokens.at(i));
            i += 1;
        }
        out
    }
}

impl Macro {
    fn is_parameters(&self) -> bool {
        !self.is_function && (0..self.body.len()).any(|i| self.body.is_attribute(i))
    }
}

fn parse(line: &str, lines: std::ops::Range<usize>) -> Option<Macro> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("define")?;
    let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
    let open = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    let is_function = rest[open..].starts_with('(');
    let (listed, body) = match is_function {
        true => rest[open + 1..].split_once(')')?,
        false => ("", &rest[open..]),
    };
    let mut parameters: Vec<String> =
        listed.split(',').map(|name| name.trim().to_owned()).collect();
    let variadic = parameters.last().is_some_and(|name| name == "...");
    parameters.retain(|name| !name.is_empty() && name != "...");
    let body = Tokens::parse(body, Path::new("\0"));
    Some(Macro { name: rest[..open].to_owned(), is_function, parameters, variadic, body, lines })
}

fn arguments(tokens: &Tokens, open: usize) -> Vec<String> {
    // Split at every comma outside of brackets, even between the angle brackets of templates, as
    // the preprocessor does.
    let (mut parts, mut start, mut i) = (Vec::new(), open + 1, open + 1);
    let end = tokens.close(open);
    while i < end {
        match tokens.at(i) {
            "(" | "[" | "{" => i = tokens.close(i),
            "," => {
                parts.push(tokens.join(start..i));
                start = i + 1;
            }
            _ => {}
        }
        i += 1;
    }
    parts.push(tokens.join(start..end));
    parts
}

/// Removes all instantiations from the source.
pub(super) fn take(source: &mut Source) -> Result<Vec<Instance>, Fault> {
    let mut found = Vec::new();
    let mut i = 0;
    while i < source.tokens.len() {
        let tokens = &source.tokens;
        if tokens.at(i) == "template" && tokens.at(i + 1) == "[" {
            let one = instance(tokens, i)
                .ok_or_else(|| source.fault(i, "an instantiation that cannot be read"))?;
            let end = one.end + 1;
            found.push(one);
            source.tokens.blank(i..end);
            i = end;
            continue;
        }
        let called = source.macros.get(tokens.at(i)).filter(|_| tokens.at(i + 1) == "(");
        if let Some(called) = called {
            let end = tokens.close(i + 1);
            let text = source.macros.expand(called, arguments(tokens, i + 1), 0);
            let inside = Tokens::parse(&text, Path::new("\0"));
            for k in (0..inside.len()).filter(|&k| inside.at(k) == "template") {
                let one = instance(&inside, k).ok_or_else(|| {
                    source
                        .fault(i, "a macro that instantiates kernels in a way that cannot be read")
                })?;
                found.push(one);
            }
            source.tokens.blank(i..end + 1);
            i = end + 1;
            continue;
        }
        i += 1;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::{Request, kernels, rewrite};

    #[test]
    fn macros_are_expanded() {
        let source = "
            #define ONE(NAME, ...) \\
              template [[host_name(NAME)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;
            #define BOTH(TYPE, T) ONE(\"f_\" TYPE \"_\" #T, f<T, 1>) ONE(\"g_\" TYPE, g<T>)
            #define EACH(MACRO) MACRO(\"float32\", float) MACRO(\"float16\", half)
            template <typename T, uint N> kernel void f() {}
            template <typename T> [[kernel]] void g() {}
            kernel void plain() {}
            EACH(BOTH)
            template [[host_name(\"h\")]] [[kernel]] void g<bfloat>();
        ";
        let names = kernels(source).unwrap();
        let wanted = ["f_float32_float", "g_float32", "f_float16_half", "g_float16", "h", "plain"];
        assert_eq!(names, wanted);
    }

    #[test]
    fn macros_stand_for_parameters() {
        let source = "#define COUNT 4\n#define PLACE \\\n  uint lane [[thread_index_in_simdgroup]]\n\
                      kernel void f(device float* x [[buffer(0)]], PLACE) { x[lane] = COUNT; }\n";
        let request = Request { source, kernel: "f", ..Request::default() };
        let text = rewrite(&request).unwrap().text;
        assert!(text.contains("uint lane = ::msl::as<uint>"), "{text}");
        assert!(text.starts_with("#define COUNT 4\n\n\n__global__"), "{text}");
    }
}
