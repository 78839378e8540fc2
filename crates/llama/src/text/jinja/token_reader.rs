//! The parser's state and its access to the tokens of a template.

use super::budget::{Outcome, fault};
use super::lexer::Token;
use super::syntax::Name;

/// The maximum nesting depth of a template's source. Brackets, signs, `not`, conditions and blocks
/// each add to the depth.
const MOST_NESTED: usize = 150;

pub struct Parser {
    tokens: std::vec::IntoIter<Token>,
    /// The nesting depth at the parser's position.
    depth: usize,
    /// For each macro or call block around the parser's position, whether it uses each of the names
    /// `varargs`, `kwargs` and `caller`.
    pub takes: Vec<[bool; 3]>,
    /// The number of loops around the parser's position within the innermost macro or call block.
    pub loops: usize,
}

impl Parser {
    pub fn new(tokens: Vec<Token>) -> Self {
        Self { tokens: tokens.into_iter(), depth: 0, takes: Vec::new(), loops: 0 }
    }

    pub fn peek(&self) -> Option<&Token> {
        self.tokens.as_slice().first()
    }

    pub fn after(&self) -> Option<&Token> {
        self.tokens.as_slice().get(1)
    }

    pub fn take(&mut self) -> Option<Token> {
        self.tokens.next()
    }

    pub fn at_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if found == name)
    }

    pub fn at(&self, symbol: &str) -> bool {
        matches!(self.peek(), Some(Token::Symbol(found)) if *found == symbol)
    }

    pub fn skip_name(&mut self, name: &str) -> bool {
        let found = self.at_name(name);
        if found {
            self.take();
        }
        found
    }

    pub fn skip(&mut self, symbol: &str) -> bool {
        let found = self.at(symbol);
        if found {
            self.take();
        }
        found
    }

    pub fn expect(&mut self, symbol: &str) -> Outcome<()> {
        match self.skip(symbol) {
            true => Ok(()),
            false => self.unexpected(&format!("{symbol:?}")),
        }
    }

    pub fn unexpected<T>(&self, expected: &str) -> Outcome<T> {
        let got = match self.peek() {
            None => "the end of the template".to_owned(),
            Some(Token::BlockEnd | Token::PrintEnd) => "the end of the tag".to_owned(),
            Some(Token::Symbol(symbol)) => format!("{symbol:?}"),
            Some(Token::Name(name)) => format!("{name:?}"),
            Some(Token::Data(_) | Token::Text(_)) => "a text".to_owned(),
            Some(Token::Int(_) | Token::Float(_)) => "a number".to_owned(),
            Some(Token::BlockBegin | Token::PrintBegin) => "a tag".to_owned(),
        };
        fault(format_args!("a syntax error: expected {expected}, got {got}"))
    }

    /// Calls `parse` one nesting level deeper. Returns a fault if this exceeds the limit.
    pub fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.depth == MOST_NESTED {
            return fault(format_args!("more than {MOST_NESTED} parts within each other"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    pub fn name(&mut self) -> Outcome<Name> {
        match self.peek() {
            Some(Token::Name(_)) => match self.take() {
                Some(Token::Name(name)) => Ok(name.into()),
                _ => self.unexpected("a name"),
            },
            _ => self.unexpected("a name"),
        }
    }

    pub fn dotted(&mut self) -> Outcome<Name> {
        let mut name = self.name()?.to_string();
        while self.skip(".") {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name.into())
    }
}
