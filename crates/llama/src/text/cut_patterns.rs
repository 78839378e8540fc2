//! Checks the regular expressions of a pre-tokenizer. Long texts are cut before a space or a line
//! break, and encoded in pieces. A cut must not change the matches of an expression.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

/// Properties of the matches of an expression. A field is true if some match may have the property.
#[derive(Clone, Copy, Default)]
struct Matches {
    empty: bool,
    /// A match begins with a space or a line break.
    spaces_first: bool,
    /// A match ends with a letter or a digit.
    letter_last: bool,
    /// A match contains a letter or digit that is followed by a space or a line break.
    pair: bool,
}

impl Matches {
    fn then(self, next: Self) -> Self {
        Self {
            empty: self.empty && next.empty,
            spaces_first: self.spaces_first || self.empty && next.spaces_first,
            letter_last: next.letter_last || next.empty && self.letter_last,
            pair: self.pair || next.pair || self.letter_last && next.spaces_first,
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            empty: self.empty || other.empty,
            spaces_first: self.spaces_first || other.spaces_first,
            letter_last: self.letter_last || other.letter_last,
            pair: self.pair || other.pair,
        }
    }
}

/// Whether an expression has the same matches if a text is cut after a letter or digit and before a
/// space or line break. So no match may span such a cut, and a match must not depend on the text
/// around it, except on the text after spaces. The function may return false for an unusual
/// expression that would be safe.
pub(crate) fn allows(pattern: &str) -> bool {
    // `\s+(?!\S)` matches spaces, except the last space before a word. The lookahead reads the
    // character after the spaces. This is safe, since a cut never separates a space from the
    // character after it.
    let pattern = pattern.replace(r"\s+(?!\S)", r"\s+");
    let Ok(words) = regex_syntax::parse(r"[\p{L}\p{N}]") else { return false };
    let (Ok(hir), HirKind::Class(Class::Unicode(words))) =
        (regex_syntax::parse(&pattern), words.kind())
    else {
        return false;
    };
    matches(&hir, words).is_some_and(|matches| !matches.empty && !matches.pair)
}

/// Returns the properties of the matches of an expression; `None` if a match may depend on the text
/// around it.
fn matches(hir: &Hir, words: &ClassUnicode) -> Option<Matches> {
    let single = |class: ClassUnicode| {
        let has = |other: &ClassUnicode| {
            let mut both = class.clone();
            both.intersect(other);
            !both.ranges().is_empty()
        };
        let spaces = [' ', '\n'].map(|c| ClassUnicodeRange::new(c, c));
        Matches {
            spaces_first: has(&ClassUnicode::new(spaces)),
            letter_last: has(words),
            ..Matches::default()
        }
    };
    let nothing = Matches { empty: true, ..Matches::default() };
    match hir.kind() {
        HirKind::Empty => Some(nothing),
        HirKind::Look(_) => None,
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            let chars =
                text.chars().map(|c| single(ClassUnicode::new([ClassUnicodeRange::new(c, c)])));
            Some(chars.fold(nothing, Matches::then))
        }
        HirKind::Class(Class::Unicode(class)) => Some(single(class.clone())),
        HirKind::Class(Class::Bytes(_)) => None,
        HirKind::Repetition(repetition) => {
            let once = matches(&repetition.sub, words)?;
            let more = if repetition.max == Some(1) { once } else { once.then(once) };
            let all = once.or(more);
            Some(if repetition.min == 0 { all.or(nothing) } else { all })
        }
        HirKind::Capture(capture) => matches(&capture.sub, words),
        HirKind::Concat(parts) => {
            parts.iter().try_fold(nothing, |before, part| Some(before.then(matches(part, words)?)))
        }
        HirKind::Alternation(parts) => parts
            .iter()
            .try_fold(Matches::default(), |others, part| Some(others.or(matches(part, words)?))),
    }
}
