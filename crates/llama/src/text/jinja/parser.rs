//! Parses statements.

use super::budget::{Outcome, fault};
use super::lexer::{Token, tokens};
use super::syntax::{Body, Definition, Expression, Loop, Name, Statement, Step, Target};
use super::token_reader::Parser;

/// The maximum size of a template in bytes. The templates of known models are less than a tenth as
/// long.
const MOST_BYTES: usize = 1 << 20;

/// Jinja's tags that are not supported: tags for other files, inheritance, escaping and extensions.
const UNSUPPORTED: [&str; 10] = [
    "include",
    "import",
    "from",
    "extends",
    "block",
    "autoescape",
    "do",
    "trans",
    "debug",
    "pluralize",
];

pub fn parse(source: &str) -> Outcome<Body> {
    if source.len() > MOST_BYTES {
        let got = source.len();
        return fault(format_args!("{got} bytes of source, where {MOST_BYTES} are the most"));
    }
    let mut parser = Parser::new(tokens(source)?);
    let body = parser.body(&[])?;
    match parser.peek() {
        None => Ok(body),
        Some(_) => parser.unexpected("a statement"),
    }
}

impl Parser {
    /// Parses the statements up to one of the tags in `ends`. Stops before the name of this tag.
    fn body(&mut self, ends: &[&str]) -> Outcome<Body> {
        self.nested(|parser| {
            let mut body = Vec::new();
            loop {
                match parser.take() {
                    None if ends.is_empty() => return Ok(body),
                    None => {
                        return fault(format_args!("a block without its {}", ends.join(" or ")));
                    }
                    Some(Token::Data(text)) => body.push(Statement::Text(text)),
                    Some(Token::PrintBegin) => {
                        body.push(Statement::Print(parser.tuple(true)?));
                        match parser.take() {
                            Some(Token::PrintEnd) => {}
                            _ => {
                                return parser.unexpected("the end of the tag after an expression");
                            }
                        }
                    }
                    Some(_) => {
                        if ends.iter().any(|end| parser.at_name(end)) {
                            return Ok(body);
                        }
                        body.push(parser.statement()?);
                    }
                }
            }
        })
    }

    fn end_of_block(&mut self) -> Outcome<()> {
        match self.peek() {
            Some(Token::BlockEnd) => {
                self.take();
                Ok(())
            }
            _ => self.unexpected("the end of the tag"),
        }
    }

    /// Parses the statements up to an end tag, and then the end tag.
    fn body_to(&mut self, end: &str) -> Outcome<Body> {
        let body = self.body(&[end])?;
        self.take();
        self.end_of_block()?;
        Ok(body)
    }

    fn statement(&mut self) -> Outcome<Statement> {
        let name = self.name()?;
        match &*name {
            "if" => self.condition(),
            "for" => self.each(),
            "set" => self.set(),
            "macro" => {
                let name = self.name()?;
                Ok(Statement::Macro(self.definition(name, "endmacro")?.into()))
            }
            "call" => self.call_block(),
            "filter" => {
                let mut filters = vec![self.filter()?];
                while self.skip("|") {
                    filters.push(self.filter()?);
                }
                self.end_of_block()?;
                Ok(Statement::Filter(filters, self.body_to("endfilter")?))
            }
            "with" => {
                let mut names = Vec::new();
                while !matches!(self.peek(), Some(Token::BlockEnd)) {
                    if !names.is_empty() {
                        self.expect(",")?;
                    }
                    let target = self.target(false)?;
                    self.expect("=")?;
                    names.push((target, self.expression()?));
                }
                self.end_of_block()?;
                Ok(Statement::With(names, self.body_to("endwith")?))
            }
            "generation" => {
                self.end_of_block()?;
                Ok(Statement::With(Vec::new(), self.body_to("endgeneration")?))
            }
            "break" | "continue" if self.loops > 0 => {
                self.end_of_block()?;
                Ok(if &*name == "break" { Statement::Break } else { Statement::Continue })
            }
            tag if UNSUPPORTED.contains(&tag) => {
                fault(format_args!("the tag {tag:?}, which is not supported"))
            }
            tag => fault(format_args!("an unknown tag {tag:?}")),
        }
    }

    fn condition(&mut self) -> Outcome<Statement> {
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        let mut condition = self.tuple(false)?;
        loop {
            self.end_of_block()?;
            let body = self.body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            if self.skip_name("elif") {
                condition = self.tuple(false)?;
                continue;
            }
            if self.skip_name("else") {
                self.end_of_block()?;
                otherwise = self.body_to("endif")?;
            } else {
                self.take();
                self.end_of_block()?;
            }
            return Ok(Statement::If(branches, otherwise));
        }
    }

    fn each(&mut self) -> Outcome<Statement> {
        if self.at_name("loop") {
            return fault("an assignment to loop");
        }
        let target = self.target(false)?;
        if !self.skip_name("in") {
            return self.unexpected("\"in\"");
        }
        let items = self.tuple(false)?;
        let test = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.end_of_block()?;
        self.loops += 1;
        let body = self.body(&["else", "endfor"])?;
        self.loops -= 1;
        let otherwise = match self.skip_name("else") {
            true => {
                self.end_of_block()?;
                self.body_to("endfor")?
            }
            false => {
                self.take();
                self.end_of_block()?;
                Vec::new()
            }
        };
        Ok(Statement::For(Loop { target, items, test, recursive, body, otherwise }.into()))
    }

    fn set(&mut self) -> Outcome<Statement> {
        let target = self.target(true)?;
        if self.skip("=") {
            let value = self.tuple(true)?;
            self.end_of_block()?;
            return Ok(Statement::Set(target, value));
        }
        let mut filters = Vec::new();
        while self.skip("|") {
            filters.push(self.filter()?);
        }
        self.end_of_block()?;
        Ok(Statement::SetBlock(target, filters, self.body_to("endset")?))
    }

    fn target(&mut self, attributes: bool) -> Outcome<Target> {
        self.nested(|parser| {
            let mut parts = Vec::new();
            loop {
                if parser.skip("(") {
                    let inner = parser.target(false)?;
                    parser.expect(")")?;
                    parts.push(inner);
                } else {
                    let name = parser.name()?;
                    if ["true", "false", "none", "True", "False", "None"].contains(&&*name) {
                        return fault(format_args!("an assignment to {name}"));
                    }
                    parts.push(match attributes && parser.skip(".") {
                        true => Target::Attribute(name, parser.name()?),
                        false => Target::Name(name),
                    });
                }
                if !parser.skip(",") {
                    break;
                }
                if parser.at("=") || parser.at_name("in") || parser.at(")") {
                    return Ok(Target::Tuple(parts));
                }
                if !attributes && matches!(parser.peek(), Some(Token::BlockEnd)) {
                    break;
                }
            }
            Ok(match parts.len() {
                1 => match parts.pop() {
                    Some(part) => part,
                    None => Target::Tuple(parts),
                },
                _ => Target::Tuple(parts),
            })
        })
    }

    /// Parses a macro after its name.
    fn definition(&mut self, name: Name, end: &str) -> Outcome<Definition> {
        let mut parameters = Vec::new();
        let loops = std::mem::take(&mut self.loops);
        self.takes.push([false; 3]);
        if end == "endmacro" || self.at("(") {
            self.expect("(")?;
            while !self.skip(")") {
                if !parameters.is_empty() {
                    self.expect(",")?;
                    if self.skip(")") {
                        break;
                    }
                }
                let name = self.name()?;
                let default = if self.skip("=") { Some(self.expression()?) } else { None };
                parameters.push((name, default));
            }
        }
        Ok(if end == "endmacro" {
            self.end_of_block()?;
            let body = self.body_to(end)?;
            self.loops = loops;
            let takes = self.takes.pop().unwrap_or_default();
            Definition { name, parameters, body, takes }
        } else {
            self.loops = loops;
            let takes = self.takes.pop().unwrap_or_default();
            Definition { name, parameters, body: Vec::new(), takes }
        })
    }

    fn call_block(&mut self) -> Outcome<Statement> {
        let mut caller = self.definition("caller".into(), "endcall")?;
        let call = self.expression()?;
        match &call {
            Expression::Postfix(_, steps) if matches!(steps.last(), Some(Step::Call(_))) => {}
            _ => return self.unexpected("a call"),
        }
        self.end_of_block()?;
        let loops = std::mem::take(&mut self.loops);
        self.takes.push([false; 3]);
        caller.body = self.body_to("endcall")?;
        caller.takes = self.takes.pop().unwrap_or_default();
        self.loops = loops;
        Ok(Statement::CallBlock(call, caller.into()))
    }
}
