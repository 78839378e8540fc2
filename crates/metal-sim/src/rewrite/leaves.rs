//! Rewrites single tokens and short sequences: address spaces, attributes, literals and vector
//! constructors.

use mlx_primitives_build::front::{Kind, SCALARS};

use super::{Purpose, Rewriter};

const DROPPED: [&str; 4] = ["threadgroup_imageblock", "ray_data", "object_data", "kernel"];

impl Rewriter {
    pub(super) fn leaves(&mut self) {
        self.template_types();
        self.braces();
        for i in 0..self.tokens.len() {
            if self.tokens.is_attribute(i) {
                let end = self.tokens.close(i);
                self.tokens.blank(i..end + 1);
            }
        }
        for i in 0..self.tokens.len() {
            match self.tokens.list[i].kind {
                Kind::Word => self.word(i),
                Kind::Number => {
                    if let Some(text) = float_literal(self.tokens.at(i)) {
                        self.tokens.list[i].text = text;
                    }
                }
                _ => {}
            }
        }
    }

    /// Replaces packed vectors of three elements with plain vectors. The packed ones are structs,
    /// and clang does not find a struct's members in other address spaces.
    pub(super) fn unpack(&mut self) {
        for token in &mut self.tokens.list {
            if let Some(plain) = token.text.strip_prefix("packed_")
                && plain.ends_with('3')
                && is_vector(plain)
            {
                token.text = plain.to_owned();
            }
        }
    }

    /// Rewrites `T(v)` and `static_cast<T>(v)` for a template parameter or an alias `T`, which may
    /// be a vector or a 16-bit type.
    fn template_types(&mut self) {
        self.types = (1..self.tokens.len())
            .filter(|&i| matches!(self.tokens.before(i), "typename" | "class" | "using"))
            .filter(|&i| matches!(self.tokens.at(i + 1), "," | ">" | "="))
            .map(|i| self.tokens.at(i).to_owned())
            .chain(self.typedefs())
            .collect();
        for i in 0..self.tokens.len() {
            let word = self.tokens.at(i);
            let begins =
                self.tokens.at(i + 1) == "(" && !matches!(self.tokens.at(i + 2), "&" | "*");
            let before = self.tokens.before(i);
            let named = matches!(before, "operator" | "struct" | "~" | "::" | "." | "->")
                || (i > 0 && self.tokens.is_word(i - 1) && !matches!(before, "return" | "else"));
            if begins && !named && self.types.contains(word) {
                self.tokens.list[i].text = format!(" ::metal::msl_convert<{word}>");
            } else if word == "static_cast" && self.tokens.close(i + 1) == i + 3 {
                let kind = self.tokens.at(i + 2);
                if may_be_vector(kind) || is_vector(kind) || matches!(kind, "half" | "bfloat") {
                    self.tokens.list[i].text = " ::metal::msl_convert".to_string();
                }
            }
        }
    }

    /// The names `N` that are declared by `typedef T N;`.
    fn typedefs(&self) -> impl Iterator<Item = String> {
        let starts = (0..self.tokens.len()).filter(|&i| self.tokens.at(i) == "typedef");
        starts.filter_map(|start| {
            let words = (start + 1..self.tokens.len()).map(|i| self.tokens.at(i));
            let words: Vec<_> =
                words.take_while(|word| !matches!(*word, ";" | "(" | "[")).collect();
            let plain = self.tokens.at(start + 1 + words.len()) == ";" && !words.contains(&"{");
            plain.then(|| words.last().copied().unwrap_or_default().to_owned())
        })
    }

    /// Rewrites `f({a, b})`, since the compiler does not convert a braced list to a vector.
    fn braces(&mut self) {
        let mut around = Vec::new();
        for open in 1..self.tokens.len() {
            match self.tokens.at(open) {
                "(" | "[" => around.push(open),
                ")" | "]" | "}" => drop(around.pop()),
                _ => {}
            }
            if self.tokens.at(open) != "{" {
                continue;
            }
            let called = around.last().is_some_and(|&at| self.tokens.at(at) == "(");
            around.push(open);
            if called && matches!(self.tokens.before(open), "(" | ",") {
                let end = self.tokens.close(open);
                let is_list = !(open..end).any(|i| self.tokens.at(i) == ";");
                if is_list && matches!(self.tokens.split(open).len(), 2 | 3) {
                    self.tokens.list[open].text = "::metal::msl_braces(".to_string();
                    self.tokens.list[end].text = ")".to_string();
                }
            }
        }
    }

    /// Rewrites `bool4 v = a < b;`, since the host compiler's comparison returns a vector of
    /// integers.
    fn truths(&mut self, i: usize) {
        let kind = self.tokens.at(i).to_owned();
        let starts = matches!(kind.as_str(), "bool2" | "bool3" | "bool4")
            && self.tokens.is_word(i + 1)
            && self.tokens.at(i + 2) == "=";
        if !starts || self.tokens.at(i + 3) == "{" {
            return;
        }
        let mut end = i + 3;
        while !matches!(self.tokens.at(end), ";" | "," | "") {
            let opens = matches!(self.tokens.at(end), "(" | "[" | "{");
            end = if opens { self.tokens.close(end) } else { end } + 1;
        }
        if self.tokens.at(end) == ";" {
            self.tokens.list[i + 2].text = format!("= ::metal::make<{kind}>(");
            self.tokens.list[end].text = ");".to_string();
        }
    }

    /// Replaces `vec` by `msl_vec` in `vec<bool, N>`, and in a `typedef` or a `using` that is not a
    /// template. Unlike `vec`, `msl_vec` supports `bool`, but the compiler cannot deduce its
    /// arguments.
    fn alias_of_vector(&mut self, i: usize) {
        if self.tokens.at(i) != "vec" || self.tokens.at(i + 1) != "<" {
            return;
        }
        let before = (0..i).rev().map(|k| self.tokens.at(k));
        let words = before.take_while(|word| !matches!(*word, ";" | "{" | "}" | "(" | ")"));
        let words: Vec<_> = words.collect();
        let names = words.iter().any(|word| matches!(*word, "typedef" | "using"));
        if self.tokens.at(i + 2) == "bool" || (names && !words.contains(&"template")) {
            self.tokens.list[i].text = "msl_vec".to_string();
        }
    }

    fn word(&mut self, i: usize) {
        let check = self.purpose == Purpose::Check;
        if self.tokens.at(i) == "coherent" && self.tokens.at(i + 1) == "(" {
            return self.tokens.blank(i..self.tokens.close(i + 1) + 1); // `coherent(device)`
        }
        let word = self.tokens.at(i);
        let replacement = match word {
            "thread" => "",
            "device" if check => "__attribute__((address_space(1)))",
            "constant" if check => "const __attribute__((address_space(2)))",
            "threadgroup" if check => "__attribute__((address_space(3)))",
            "constant" => "const",
            "device" | "threadgroup" => "",
            _ if DROPPED.contains(&word) => "",
            _ => return self.constructor(i),
        };
        self.tokens.list[i].text = replacement.to_string();
    }

    /// Rewrites the casts `(half4) x` and `(T) x` with `->*`, which binds more tightly than binary
    /// arithmetic operators. The compiler refuses such casts between vectors of different sizes.
    fn cast(&mut self, i: usize) -> bool {
        let (before, after) = (i.wrapping_sub(1), i + 1);
        let parenthesized = self.tokens.before(i) == "(" && self.tokens.at(after) == ")";
        let vector = is_vector(self.tokens.at(i));
        if !parenthesized || !(vector || may_be_vector(self.tokens.at(i))) {
            return false;
        }
        let operand = self.tokens.at(after + 1);
        let word = |text: &str| text.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let outside = self.tokens.before(before);
        let called = (word(outside) && outside != "return") || matches!(outside, ")" | "]" | ">");
        let is_type = vector || self.types.contains(self.tokens.at(i)); // or `(a) - b`
        let operand = word(operand)
            || operand == "("
            || (is_type && matches!(operand, "-" | "+" | "~" | "*"));
        if called || !operand {
            return false;
        }
        let name = self.tokens.at(i);
        self.tokens.list[i].text = format!(" ::metal::msl_cast<{name}>(");
        self.tokens.list[after].text = ")) ->*".to_string();
        true
    }

    /// Whether tokens such as `float2 v(x, y);` declare a variable rather than a function.
    fn declares(&self, i: usize) -> bool {
        let open = i + 2;
        if !is_vector(self.tokens.at(i))
            || !self.tokens.is_word(i + 1)
            || self.tokens.at(open) != "("
        {
            return false;
        }
        let parts = self.tokens.split(open);
        let is_type = |word: &str| SCALARS.contains(&word) || is_vector(word);
        let is_parameter = |part: &std::ops::Range<usize>| {
            let pair = |k: usize| self.tokens.is_word(k) && self.tokens.is_word(k + 1);
            (part.start..part.end - 1).any(pair)
                || (part.len() == 1 && is_type(self.tokens.at(part.start)))
        };
        let ends = self.tokens.at(self.tokens.close(open) + 1) == ";";
        ends && parts.len() > 1 && !parts.iter().any(is_parameter)
    }

    fn constructor(&mut self, i: usize) {
        if self.cast(i) {
            return;
        }
        self.truths(i);
        self.alias_of_vector(i);
        let qualified = self.tokens.before(i) == "::" && i > 1 && self.tokens.at(i - 2) == "metal";
        if matches!(self.tokens.before(i), "operator" | "struct" | "~" | "::") && !qualified {
            return;
        }
        if self.declares(i) {
            let kind = self.tokens.at(i).to_owned();
            self.tokens.list[i + 1].text.push_str(&format!(" = ::metal::make<{kind}>"));
        } else if is_vector(self.tokens.at(i)) && self.tokens.at(i + 1) == "(" {
            let name = self.tokens.at(i);
            // The space separates the name from the `:` of `a ?b:half2(c)`.
            let scope = if qualified { "" } else { " ::metal::" };
            self.tokens.list[i].text = format!("{scope}make<{name}>");
        } else if matches!(self.tokens.at(i), "vec" | "msl_vec") && self.tokens.at(i + 1) == "<" {
            let end = self.tokens.close(i + 1);
            if self.tokens.at(end + 1) == "(" {
                self.tokens.list[i].text.insert_str(0, "make<");
                if !qualified {
                    self.tokens.list[i].text.insert_str(0, " ::metal::");
                }
                self.tokens.list[end].text = "> >".to_string();
            }
        }
    }
}

/// Whether this crate's Metal headers declare the name as a vector, such as `float4` or
/// `packed_half2`.
fn is_vector(word: &str) -> bool {
    let Some(width) = word.chars().last() else { return false };
    let packed = word.strip_prefix("packed_");
    let element = packed.unwrap_or(word).trim_end_matches(['2', '3', '4']);
    word.ends_with(|c: char| "234".contains(c))
        && SCALARS.contains(&element)
        && packed.unwrap_or(word).len() == element.len() + 1
        && !(packed.is_some() && width == '3')
}

/// Whether the source may use this name for a vector type, for example as a template parameter.
fn may_be_vector(word: &str) -> bool {
    let number = SCALARS.contains(&word) || word.starts_with("int") || word.starts_with("uint");
    let other = matches!(word, "size_t" | "ptrdiff_t" | "unsigned" | "signed" | "void" | "this");
    word.starts_with(|c: char| c.is_alphabetic() || c == '_') && !number && !other
}

/// Returns a floating-point literal in the form for the host's compiler; `None` if the text needs
/// no change. In MSL, `1.5` is a float, `1.5h` a half and `1.5bf` a bfloat.
fn float_literal(text: &str) -> Option<String> {
    if text.starts_with("0x") || text.starts_with("0X") {
        return None;
    }
    let digits = text.find(|c: char| !c.is_ascii_digit() && !".eE+-'".contains(c));
    let (value, suffix) = text.split_at(digits.unwrap_or(text.len()));
    let fractional = value.contains(['.', 'e', 'E']);
    let value = if fractional { value.to_string() } else { format!("{value}.0") };
    match suffix {
        "" if fractional => Some(format!("{value}f")),
        "f" | "F" => Some(format!("{value}f")),
        "h" | "H" => Some(format!("{value}f16")),
        "bf" | "BF" => Some(format!("((bfloat){value}f)")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals() {
        for (from, to) in [
            ("1.5", Some("1.5f")),
            ("1e-3", Some("1e-3f")),
            ("2h", Some("2.0f16")),
            ("3.0bf", Some("((bfloat)3.0f)")),
            ("17", None),
            ("17u", None),
            ("0x1f", None),
        ] {
            assert_eq!(float_literal(from).as_deref(), to, "{from}");
        }
    }

    #[test]
    fn vectors() {
        for (word, expected) in
            [("float4", true), ("packed_half2", true), ("packed_float3", false), ("float44", false)]
        {
            assert_eq!(is_vector(word), expected, "{word}");
        }
    }
}
