use crate::error::{Error, Result};

/// Finds stop strings in a text that comes in pieces.
pub(super) struct StopStrings {
    strings: Vec<String>,
    /// The end of the text so far, which may be the beginning of a stop string.
    held: String,
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
        Ok(Self { strings: strings.to_vec(), held: String::new() })
    }

    /// Adds a piece. Returns the text that can be shown, and whether a stop string was found, in
    /// which case the text from that string on is dropped.
    pub fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        let found = self.strings.iter().filter_map(|string| self.held.find(string)).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begun = |&(at, _): &(usize, char)| {
            let end = self.held.get(at..).unwrap_or_default();
            self.strings.iter().any(|string| string.starts_with(end))
        };
        let longest = self.strings.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let end = self.held.char_indices().filter(|(at, _)| *at >= from).find(begun);
        let kept = self.held.split_off(end.map_or(self.held.len(), |(at, _)| at));
        (std::mem::replace(&mut self.held, kept), false)
    }

    /// The end of the text, which was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
