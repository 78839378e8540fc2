//! Removes declarations that differ from another one only in address spaces. The two would collide,
//! since the rewriter drops address spaces.

use std::collections::HashSet;

use super::{Purpose, Rewriter, SPACES};

impl Rewriter {
    /// Removes the address space from members such as `T get() const device {...}`. If members
    /// differ only in the address space, one of them is kept.
    pub(super) fn method_qualifiers(&mut self) {
        let (mut seen, mut scopes) = (HashSet::new(), HashSet::new());
        for i in 1..self.tokens.len() {
            let constant_before = matches!(self.tokens.before(i), "const" | "volatile");
            let closes = if constant_before { i.saturating_sub(2) } else { i - 1 };
            let qualifies = SPACES.contains(&self.tokens.at(i))
                && matches!(self.tokens.at(i + 1), "{" | ";" | ":" | "=")
                && self.tokens.at(closes) == ")";
            if !qualifies {
                continue;
            }
            let start = self.member_start(closes);
            let scope = self.scope(start);
            if scopes.insert(scope) {
                seen.extend(self.members(scope).into_iter().map(|text| format!("{scope}:{text}")));
            }
            let signature = format!("{scope}:{}", self.plain(start, i));
            self.tokens.blank(i..i + 1);
            if !seen.insert(signature) {
                let end = self.member_end(i + 1);
                self.tokens.blank(start..end + 1);
            }
        }
    }

    /// Returns the text of each member function that has no address space, without its body. The
    /// struct begins at `brace`.
    fn members(&self, brace: usize) -> Vec<String> {
        let mut found = Vec::new();
        if self.tokens.at(brace) != "{" {
            return found;
        }
        let mut at = brace + 1;
        let end = self.tokens.close(brace);
        while at < end {
            let close = self.tokens.close(at);
            match self.tokens.at(at) {
                "(" => {
                    let constant = self.tokens.at(close + 1) == "const";
                    let after = close + 1 + usize::from(constant);
                    if matches!(self.tokens.at(after), "{" | ";" | ":" | "=") {
                        found.push(self.plain(self.member_start(close), after));
                    }
                    at = close;
                }
                "{" => at = close,
                _ => {}
            }
            at += 1;
        }
        found
    }

    /// Returns the text of a declaration without its address spaces.
    fn plain(&self, start: usize, end: usize) -> String {
        let words = (start..end).map(|i| self.tokens.at(i));
        words.filter(|word| !SPACES.contains(word)).collect::<Vec<_>>().join(" ")
    }

    fn member_start(&self, from: usize) -> usize {
        let mut depth = 0;
        let mut at = from;
        while at > 0 {
            match self.tokens.at(at) {
                ")" | "]" => depth += 1,
                "(" | "[" => depth -= 1,
                _ => {}
            }
            let label = self.tokens.before(at) == ":"
                && at > 1
                && matches!(self.tokens.at(at - 2), "public" | "private" | "protected");
            if depth == 0 && (label || matches!(self.tokens.before(at), ";" | "{" | "}" | "")) {
                return at; // an empty token: a member that was removed
            }
            at -= 1;
        }
        0
    }

    fn member_end(&self, from: usize) -> usize {
        let mut at = from;
        while at < self.tokens.len() {
            match self.tokens.at(at) {
                "(" => at = self.tokens.close(at),
                "{" => {
                    let end = self.tokens.close(at);
                    return if self.tokens.at(end + 1) == ";" { end + 1 } else { end };
                }
                ";" => return at,
                _ => {}
            }
            at += 1;
        }
        self.tokens.len() - 1
    }

    /// Returns the position of the opening brace around `i`, which identifies the scope.
    fn scope(&self, i: usize) -> usize {
        let mut depth = 0;
        for at in (0..i).rev() {
            match self.tokens.at(at) {
                "}" => depth += 1,
                "{" if depth == 0 => return at,
                "{" => depth -= 1,
                _ => {}
            }
        }
        usize::MAX
    }

    /// Turns a parameter such as `constant T x[2]` into a pointer. With an address space, clang
    /// does not treat such a parameter as a pointer.
    pub(super) fn array_parameters(&mut self) {
        for open in 1..self.tokens.len() {
            let end = self.tokens.close(open);
            let definition = self.tokens.at(open) == "("
                && self.tokens.is_word(open - 1)
                && matches!(self.tokens.at(end + 1), "{" | "const");
            if !definition {
                continue;
            }
            for part in self.tokens.split(open) {
                let spaced = part.clone().any(|i| SPACES.contains(&self.tokens.at(i)));
                let bracket = part.clone().find(|&i| self.tokens.at(i) == "[");
                if let (true, Some(bracket)) = (spaced, bracket)
                    && !self.tokens.is_attribute(bracket)
                    && self.tokens.before(bracket) != ")"
                // `(&name)[N]`
                {
                    let end = self.tokens.close(bracket);
                    self.tokens.blank(bracket..end + 1);
                    let name = bracket - 1;
                    self.tokens.list[name].text.insert_str(0, "* ");
                }
            }
        }
    }

    /// Removes free functions and specializations that differ from an earlier one only in address
    /// spaces.
    pub(super) fn space_overloads(&mut self) {
        debug_assert_ne!(self.purpose, Purpose::Check);
        let mut seen = HashSet::new();
        let mut scopes: Vec<String> = Vec::new();
        let (mut i, mut start) = (0, 0);
        while i < self.tokens.len() {
            match self.tokens.at(i) {
                ";" => start = i + 1,
                "}" => {
                    scopes.pop();
                    start = i + 1;
                }
                "{" => {
                    let heading: Vec<&str> = (start..i).map(|k| self.tokens.at(k)).collect();
                    if heading.contains(&"namespace") || heading.first() == Some(&"extern") {
                        scopes.push(heading.join(" "));
                        start = i + 1;
                    } else {
                        let end = self.tokens.close(i);
                        if heading.iter().any(|word| SPACES.contains(word)) {
                            let key = format!("{}:{}", scopes.join("::"), self.plain(start, i));
                            if !seen.insert(key) {
                                self.tokens.blank(start..end + 1);
                            }
                        }
                        i = end;
                        start = end + 1;
                    }
                }
                _ => {}
            }
            i += 1;
        }
    }
}
