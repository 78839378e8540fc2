//! Computes the values of expressions.

use std::rc::Rc;

use super::arguments::Arguments;
use super::arithmetic::{negative, operate, slice};
use super::attributes::{attribute, by_text, subscript};
use super::budget::{Budget, Buffer, Items, Outcome, fault};
use super::checks::check;
use super::filters::{NAMES, filter};
use super::iteration::{contains, values};
use super::python::{equal, insert, order, write_text};
use super::syntax::{Argument, Comparison, Expression, Name, Step};
use super::value::{Scope, SequenceKind, Value};
use super::{functions, methods};

/// Evaluates expressions. The interpreter implements this trait and adds calls of macros and
/// recursive loops.
pub trait Evaluator {
    fn budget(&self) -> &Budget;

    /// Calls `run` one nesting level deeper. Returns a fault if this exceeds the limit.
    fn nested<T>(&self, run: impl FnOnce() -> Outcome<T>) -> Outcome<T>;

    /// Calls a macro or a recursive loop.
    fn invoke(&self, called: &Value, arguments: Arguments) -> Outcome<Value>;

    fn lookup(&self, name: &Name, scope: &Rc<Scope>) -> Value {
        let mut at = Some(scope);
        while let Some(scope) = at {
            if let Some((_, value)) = scope.names.borrow().iter().find(|(known, _)| known == name) {
                return value.clone();
            }
            at = scope.parent.as_ref();
        }
        functions::find(name).unwrap_or_else(|| Value::Undefined(name.clone()))
    }

    fn expression(&self, expression: &Expression, scope: &Rc<Scope>) -> Outcome<Value> {
        self.budget().steps(1)?;
        match expression {
            Expression::None => Ok(Value::None),
            Expression::Bool(value) => Ok(Value::Bool(*value)),
            Expression::Int(value) => Ok(Value::Int(*value)),
            Expression::Float(value) => Ok(Value::Float(*value)),
            Expression::Text(text) => Value::text(self.budget(), text),
            Expression::Name(name) => Ok(self.lookup(name, scope)),
            other => self.nested(|| self.compound(other, scope)),
        }
    }

    fn compound(&self, expression: &Expression, scope: &Rc<Scope>) -> Outcome<Value> {
        let budget = self.budget();
        match expression {
            Expression::List(parts) | Expression::Tuple(parts) => {
                let mut items = Items::new(budget)?;
                for part in parts {
                    items.push(self.expression(part, scope)?)?;
                }
                let list = matches!(expression, Expression::List(_));
                Value::sequence(if list { SequenceKind::List } else { SequenceKind::Tuple }, items)
            }
            Expression::Dict(parts) => {
                let mut fields = Items::new(budget)?;
                for (key, value) in parts {
                    let key = self.expression(key, scope)?;
                    insert(budget, &mut fields, key, self.expression(value, scope)?)?;
                }
                Value::dict(fields)
            }
            Expression::Choice(parts, otherwise) => {
                let [then, condition] = &**parts;
                match (self.expression(condition, scope)?.truth(), otherwise) {
                    (true, _) => self.expression(then, scope),
                    (false, Some(otherwise)) => self.expression(otherwise, scope),
                    (false, None) => Ok(Value::Undefined("the else of a condition".into())),
                }
            }
            Expression::And(parts) | Expression::Or(parts) => {
                let until = matches!(expression, Expression::Or(_));
                let mut value = Value::None;
                for part in parts {
                    value = self.expression(part, scope)?;
                    if value.truth() == until {
                        break;
                    }
                }
                Ok(value)
            }
            Expression::Not(value) => Ok(Value::Bool(!self.expression(value, scope)?.truth())),
            Expression::Negative(value) => negative(&self.expression(value, scope)?),
            Expression::Positive(value) => {
                let value = self.expression(value, scope)?;
                match value.as_int() {
                    Some(value) => Ok(Value::Int(value)),
                    None if value.as_float().is_some() => Ok(value),
                    None => fault("a sign before a value that is no number"),
                }
            }
            Expression::Concat(parts) => {
                let mut text = Buffer::new(budget)?;
                for part in parts {
                    write_text(&mut text, budget, &self.expression(part, scope)?)?;
                }
                Ok(Value::of(text))
            }
            Expression::Chain(first, rest) => {
                let mut value = self.expression(first, scope)?;
                for (operator, part) in rest {
                    value = operate(budget, *operator, &value, &self.expression(part, scope)?)?;
                }
                Ok(value)
            }
            Expression::Compare(first, rest) => {
                let mut left = self.expression(first, scope)?;
                for (comparison, part) in rest {
                    let right = self.expression(part, scope)?;
                    if !compare(budget, *comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expression::Postfix(base, steps) => self.postfix(base, steps, scope),
            simple => self.expression(simple, scope),
        }
    }

    fn postfix(&self, base: &Expression, steps: &[Step], scope: &Rc<Scope>) -> Outcome<Value> {
        let mut value = self.expression(base, scope)?;
        for step in steps {
            value = self.step(&value, step, scope)?;
        }
        Ok(value)
    }

    fn step(&self, value: &Value, step: &Step, scope: &Rc<Scope>) -> Outcome<Value> {
        let budget = self.budget();
        match step {
            Step::Attribute(name) => attribute(budget, value, name),
            Step::Item(index) => subscript(budget, value, &self.expression(index, scope)?),
            Step::Slice(bounds) => {
                let mut found = [None, None, None];
                for (found, bound) in found.iter_mut().zip(bounds.iter()) {
                    *found = bound.as_ref().map(|b| self.expression(b, scope)).transpose()?;
                }
                slice(budget, value, found.each_ref().map(Option::as_ref))
            }
            Step::Filter(call) => {
                let arguments = self.arguments(&call.arguments, scope)?;
                filter(budget, &call.name, value, arguments)
            }
            Step::Test(call, negated) => {
                let arguments = self.arguments(&call.arguments, scope)?;
                let passes = check(budget, &call.name, value, arguments, &NAMES)?;
                Ok(Value::Bool(passes != *negated))
            }
            Step::Call(arguments) => {
                let arguments = self.arguments(arguments, scope)?;
                match value {
                    Value::Function(name) => functions::call(budget, name, arguments),
                    Value::Method(method) => {
                        let part = |value: &Value, name: &str, attribute: bool| {
                            by_text(budget, value, name, attribute)
                        };
                        methods::call(budget, &method.0, &method.1, arguments, &part)
                    }
                    other => self.invoke(other, arguments),
                }
            }
        }
    }

    fn arguments(&self, given: &[Argument], scope: &Rc<Scope>) -> Outcome<Arguments> {
        let (mut positional, mut named) = (Vec::new(), Vec::<(Name, Value)>::new());
        for argument in given {
            match argument {
                Argument::Positional(value) => positional.push(self.expression(value, scope)?),
                Argument::Named(name, value) => {
                    named.push((name.clone(), self.expression(value, scope)?));
                }
                Argument::Spread(value) => {
                    positional.extend(values(self.budget(), &self.expression(value, scope)?)?);
                }
                Argument::SpreadNamed(value) => match self.expression(value, scope)? {
                    Value::Dict(dict) => {
                        for (key, value) in &dict.fields {
                            let Some(key) = key.as_str() else {
                                return fault("arguments whose names are no texts");
                            };
                            named.push((key.into(), value.clone()));
                        }
                    }
                    _ => return fault("arguments by name that are no dictionary"),
                },
            }
        }
        for (i, (name, _)) in named.iter().enumerate() {
            self.budget().steps(1 + i / 16)?;
            if named.iter().take(i).any(|(other, _)| other == name) {
                return fault(format_args!("the argument {name:?} twice"));
            }
        }
        Ok(Arguments { positional, named })
    }
}

fn compare(budget: &Budget, comparison: Comparison, a: &Value, b: &Value) -> Outcome<bool> {
    let ordered = || order(budget, a, b);
    Ok(match comparison {
        Comparison::Equal => equal(budget, a, b)?,
        Comparison::NotEqual => !equal(budget, a, b)?,
        Comparison::Less => ordered()?.is_some_and(|order| order.is_lt()),
        Comparison::LessEqual => ordered()?.is_some_and(|order| order.is_le()),
        Comparison::Greater => ordered()?.is_some_and(|order| order.is_gt()),
        Comparison::GreaterEqual => ordered()?.is_some_and(|order| order.is_ge()),
        Comparison::In => contains(budget, b, a)?,
        Comparison::NotIn => !contains(budget, b, a)?,
    })
}
