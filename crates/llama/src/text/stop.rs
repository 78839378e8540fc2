use std::ops::Range;

use mlx_primitives::{Error, Result};

/// Finds stop strings in a text that arrives in pieces.
pub(crate) struct StopStrings {
    strings: Vec<String>,
    /// The end of the text so far, held back because it may be the start of a stop string.
    held: String,
    /// The ranges of `held` that are special tokens. Stop strings may match special tokens, but the
    /// output does not contain special tokens.
    hidden: Vec<Range<usize>>,
}

impl StopStrings {
    /// Returns an error for an empty stop string.
    pub fn new(strings: &[String]) -> Result<Self> {
        if strings.iter().any(String::is_empty) {
            return Err(Error::argument(
                "generate",
                "stop strings of one character or more, got \"\"",
            ));
        }
        Ok(Self { strings: strings.to_vec(), held: String::new(), hidden: Vec::new() })
    }

    /// Whether there are no stop strings.
    pub fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    /// Adds the text of a special token, which the returned text will not contain. Returns the same
    /// values as [`push`](Self::push).
    pub fn push_special(&mut self, token: &str) -> (String, bool) {
        self.hidden.push(self.held.len()..self.held.len() + token.len());
        self.push(token)
    }

    /// Adds a piece of text. Returns the text that can be output, and whether a stop string was
    /// found. If a stop string was found, the text from this string on is dropped.
    pub fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        let found = self.strings.iter().filter_map(|string| self.held.find(string)).min();
        if let Some(at) = found {
            let shown = self.shown(at);
            self.finish();
            return (shown, true);
        }
        let begun = |&(at, _): &(usize, char)| {
            let end = self.held.get(at..).unwrap_or_default();
            self.strings.iter().any(|string| string.starts_with(end))
        };
        let longest = self.strings.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let end = self.held.char_indices().filter(|(at, _)| *at >= from).find(begun);
        let at = end.map_or(self.held.len(), |(at, _)| at);
        let shown = self.shown(at);
        self.held.drain(..at);
        self.hidden.retain(|range| range.end > at);
        for range in &mut self.hidden {
            *range = range.start.saturating_sub(at)..range.end - at;
        }
        (shown, false)
    }

    /// Returns the text in `held` before the byte `at`, without special tokens.
    fn shown(&self, at: usize) -> String {
        let (mut text, mut from) = (String::new(), 0);
        for range in &self.hidden {
            text += self.held.get(from..range.start.min(at)).unwrap_or_default();
            from = range.end;
        }
        text + self.held.get(from..at).unwrap_or_default()
    }

    /// Returns the text that is still held back. Call this after the last piece.
    pub fn finish(&mut self) -> String {
        let text = self.shown(self.held.len());
        self.held.clear();
        self.hidden.clear();
        text
    }
}
