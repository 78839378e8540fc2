//! Parses expressions. Operators have the same precedence as in Jinja.

use super::budget::Outcome;
use super::lexer::Token;
use super::syntax::{Argument, Call, Comparison, Expression, Operator, Step};
use super::token_reader::Parser;

impl Parser {
    pub fn expression(&mut self) -> Outcome<Expression> {
        self.nested(|parser| {
            let mut value = parser.or()?;
            while parser.skip_name("if") {
                let condition = parser.or()?;
                let otherwise = match parser.skip_name("else") {
                    true => Some(Box::new(parser.expression()?)),
                    false => None,
                };
                value = Expression::Choice(Box::new([value, condition]), otherwise);
                // Jinja reads `a if b if c` as `(a if b) if c`, which this parser does not support.
                if parser.at_name("if") {
                    return parser.unexpected("one condition");
                }
            }
            Ok(value)
        })
    }

    /// Parses an expression or several comma-separated expressions. `condition` allows
    /// `x if y else z`.
    pub fn tuple(&mut self, condition: bool) -> Outcome<Expression> {
        let part = |parser: &mut Self| match condition {
            true => parser.expression(),
            false => parser.nested(Self::or),
        };
        let first = part(self)?;
        if !self.at(",") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip(",") {
            if self.ends() {
                break;
            }
            parts.push(part(self)?);
        }
        Ok(Expression::Tuple(parts))
    }

    fn ends(&self) -> bool {
        matches!(self.peek(), None | Some(Token::BlockEnd | Token::PrintEnd)) || self.at(")")
    }

    pub fn or(&mut self) -> Outcome<Expression> {
        self.joined("or", Self::and, Expression::Or)
    }

    fn and(&mut self) -> Outcome<Expression> {
        self.joined("and", Self::not, Expression::And)
    }

    fn joined(
        &mut self,
        word: &str,
        part: fn(&mut Self) -> Outcome<Expression>,
        join: fn(Vec<Expression>) -> Expression,
    ) -> Outcome<Expression> {
        let first = part(self)?;
        if !self.at_name(word) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_name(word) {
            parts.push(part(self)?);
        }
        Ok(join(parts))
    }

    fn not(&mut self) -> Outcome<Expression> {
        if self.skip_name("not") {
            return Ok(Expression::Not(Box::new(self.nested(Self::not)?)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Outcome<Expression> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                Some(Token::Symbol("==")) => Comparison::Equal,
                Some(Token::Symbol("!=")) => Comparison::NotEqual,
                Some(Token::Symbol("<")) => Comparison::Less,
                Some(Token::Symbol("<=")) => Comparison::LessEqual,
                Some(Token::Symbol(">")) => Comparison::Greater,
                Some(Token::Symbol(">=")) => Comparison::GreaterEqual,
                Some(Token::Name(name)) if name == "in" => Comparison::In,
                Some(Token::Name(name))
                    if name == "not"
                        && matches!(self.after(), Some(Token::Name(next)) if next == "in") =>
                {
                    self.take();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.take();
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Compare(Box::new(first), rest) })
    }

    fn chain(
        &mut self,
        operators: &[(&str, Operator)],
        part: fn(&mut Self) -> Outcome<Expression>,
    ) -> Outcome<Expression> {
        let first = part(self)?;
        let mut rest = Vec::new();
        while let Some((symbol, operator)) = operators.iter().find(|(symbol, _)| self.at(symbol)) {
            self.expect(symbol)?;
            rest.push((*operator, part(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Chain(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Outcome<Expression> {
        self.chain(&[("+", Operator::Add), ("-", Operator::Subtract)], Self::concat)
    }

    fn concat(&mut self) -> Outcome<Expression> {
        let first = self.product()?;
        if !self.at("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip("~") {
            parts.push(self.product()?);
        }
        Ok(Expression::Concat(parts))
    }

    fn product(&mut self) -> Outcome<Expression> {
        let operators = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Remainder),
        ];
        self.chain(&operators, Self::power)
    }

    fn power(&mut self) -> Outcome<Expression> {
        self.chain(&[("**", Operator::Power)], |parser| parser.unary(true))
    }

    fn unary(&mut self, filters: bool) -> Outcome<Expression> {
        let base = if self.skip("-") {
            Expression::Negative(Box::new(self.nested(|parser| parser.unary(false))?))
        } else if self.skip("+") {
            Expression::Positive(Box::new(self.nested(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        self.postfix(base, filters)
    }

    fn primary(&mut self) -> Outcome<Expression> {
        let expected = "an expression";
        match self.peek() {
            None | Some(Token::BlockEnd | Token::PrintEnd) => return self.unexpected(expected),
            Some(Token::Symbol("(" | "[" | "{") | Token::Name(_)) => {}
            Some(Token::Text(_) | Token::Int(_) | Token::Float(_)) => {}
            Some(_) => return self.unexpected(expected),
        }
        match self.take() {
            Some(Token::Name(name)) => Ok(match &*name {
                "true" | "True" => Expression::Bool(true),
                "false" | "False" => Expression::Bool(false),
                "none" | "None" => Expression::None,
                _ => {
                    let words = ["varargs", "kwargs", "caller"];
                    for takes in &mut self.takes {
                        for (takes, word) in takes.iter_mut().zip(words) {
                            *takes |= name == word;
                        }
                    }
                    Expression::Name(name.into())
                }
            }),
            Some(Token::Text(mut text)) => {
                while let Some(Token::Text(_)) = self.peek() {
                    if let Some(Token::Text(more)) = self.take() {
                        text.push_str(&more);
                    }
                }
                Ok(Expression::Text(text))
            }
            Some(Token::Int(value)) => Ok(Expression::Int(value)),
            Some(Token::Float(value)) => Ok(Expression::Float(value)),
            Some(Token::Symbol("(")) => {
                if self.skip(")") {
                    return Ok(Expression::Tuple(Vec::new()));
                }
                let value = self.tuple(true)?;
                self.expect(")")?;
                Ok(value)
            }
            Some(Token::Symbol("[")) => {
                let mut items = Vec::new();
                while !self.skip("]") {
                    if !items.is_empty() {
                        self.expect(",")?;
                        if self.skip("]") {
                            break;
                        }
                    }
                    items.push(self.expression()?);
                }
                Ok(Expression::List(items))
            }
            _ => self.dict(),
        }
    }

    fn dict(&mut self) -> Outcome<Expression> {
        let mut fields = Vec::new();
        while !self.skip("}") {
            if !fields.is_empty() {
                self.expect(",")?;
                if self.skip("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect(":")?;
            fields.push((key, self.expression()?));
        }
        Ok(Expression::Dict(fields))
    }

    fn postfix(&mut self, base: Expression, filters: bool) -> Outcome<Expression> {
        let mut steps = Vec::new();
        loop {
            if self.skip(".") {
                steps.push(match self.peek() {
                    Some(Token::Int(index)) => {
                        let index = *index;
                        self.take();
                        Step::Item(Expression::Int(index))
                    }
                    _ => Step::Attribute(self.name()?),
                });
            } else if self.skip("[") {
                steps.push(self.subscript()?);
            } else if self.at("(") {
                steps.push(Step::Call(self.arguments()?));
            } else if filters && self.skip("|") {
                steps.push(Step::Filter(self.filter()?));
            } else if filters && self.skip_name("is") {
                let negated = self.skip_name("not");
                steps.push(Step::Test(self.test()?, negated));
                if self.at_name("is") {
                    return self.unexpected("one test");
                }
            } else {
                break;
            }
        }
        Ok(if steps.is_empty() { base } else { Expression::Postfix(Box::new(base), steps) })
    }

    /// Parses a filter after its `|`.
    pub fn filter(&mut self) -> Outcome<Call> {
        let name = self.dotted()?;
        let arguments = if self.at("(") { self.arguments()? } else { Vec::new() };
        Ok(Call { name, arguments })
    }

    fn test(&mut self) -> Outcome<Call> {
        let name = self.dotted()?;
        if self.at("(") {
            return Ok(Call { name, arguments: self.arguments()? });
        }
        let argument = match self.peek() {
            Some(Token::Symbol("[" | "{") | Token::Text(_) | Token::Int(_) | Token::Float(_)) => {
                true
            }
            Some(Token::Name(next)) => {
                !["else", "or", "and", "is", "if", "in", "not", "recursive"].contains(&&**next)
            }
            _ => false,
        };
        let mut arguments = Vec::new();
        if argument {
            let base = self.primary()?;
            arguments.push(Argument::Positional(self.postfix(base, false)?));
        }
        Ok(Call { name, arguments })
    }

    fn subscript(&mut self) -> Outcome<Step> {
        let mut parts: [Option<Expression>; 3] = [None, None, None];
        let mut colons = 0;
        while !self.skip("]") {
            if self.skip(":") {
                colons += 1;
                if colons > 2 {
                    return self.unexpected("a slice of three parts");
                }
                continue;
            }
            match parts.get_mut(colons) {
                Some(part @ None) => *part = Some(self.expression()?),
                _ => return self.unexpected("\"]\""),
            }
        }
        match (colons, parts) {
            (0, [Some(index), ..]) => Ok(Step::Item(index)),
            (0, _) => self.unexpected("an index"),
            (_, parts) => Ok(Step::Slice(Box::new(parts))),
        }
    }

    fn arguments(&mut self) -> Outcome<Vec<Argument>> {
        self.expect("(")?;
        let mut arguments = Vec::new();
        while !self.skip(")") {
            if !arguments.is_empty() {
                self.expect(",")?;
                if self.skip(")") {
                    break;
                }
            }
            arguments.push(if self.skip("**") {
                Argument::SpreadNamed(self.expression()?)
            } else if self.skip("*") {
                Argument::Spread(self.expression()?)
            } else if let (Some(Token::Name(_)), Some(Token::Symbol("="))) =
                (self.peek(), self.after())
            {
                let name = self.name()?;
                self.expect("=")?;
                Argument::Named(name, self.expression()?)
            } else {
                Argument::Positional(self.expression()?)
            });
        }
        Ok(arguments)
    }
}
