//! Runs the statements of a template.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::arguments::Arguments;
use super::budget::{Budget, Buffer, Charge, Items, Outcome, fault};
use super::evaluate::Evaluator;
use super::filters::filter;
use super::functions::set;
use super::iteration::values;
use super::python::described;
use super::syntax::{Body, Call, Definition, Expression, Loop, Name, Statement, Step, Target};
use super::value::{LoopState, Macro, Scope, SequenceKind, Value};

/// The maximum nesting depth of statements, expressions and calls while a template runs. Each
/// nesting level takes less than 16 KiB of the stack.
const MOST_NESTED: usize = 2_000;

/// Where execution continues after a statement.
#[derive(PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

pub struct Interpreter {
    budget: Budget,
    depth: Cell<usize>,
}

impl Interpreter {
    pub fn new(budget: Budget) -> Self {
        Self { budget, depth: Cell::new(0) }
    }

    /// Runs a template with these variables.
    pub fn run(&self, body: &Body, variables: Vec<(Name, Value)>, to: &mut Buffer) -> Outcome<()> {
        let scope = self.scope(None)?;
        scope.names.borrow_mut().extend(variables);
        // Names that the template sets go into a second scope inside the scope of the variables.
        // Macros can read both scopes.
        let scope = self.scope(Some(&scope))?;
        self.body(body, &scope, to).map(drop)
    }

    fn scope(&self, parent: Option<&Rc<Scope>>) -> Outcome<Rc<Scope>> {
        let _charge = Charge::new(&self.budget, 256)?;
        Ok(Rc::new(Scope { names: RefCell::default(), parent: parent.cloned(), _charge }))
    }

    fn body(&self, body: &Body, scope: &Rc<Scope>, to: &mut Buffer) -> Outcome<Flow> {
        self.nested(|| {
            for statement in body {
                match self.statement(statement, scope, to)? {
                    Flow::Next => {}
                    flow => return Ok(flow),
                }
            }
            Ok(Flow::Next)
        })
    }

    /// Runs a body in a new scope and returns the text that it prints.
    fn block(&self, body: &Body, scope: &Rc<Scope>) -> Outcome<Value> {
        let mut text = Buffer::new(&self.budget)?;
        let inner = self.scope(Some(scope))?;
        self.body(body, &inner, &mut text)?;
        Ok(Value::of(text))
    }

    fn statement(
        &self,
        statement: &Statement,
        scope: &Rc<Scope>,
        to: &mut Buffer,
    ) -> Outcome<Flow> {
        self.budget.steps(1)?;
        match statement {
            Statement::Text(text) => to.push(text)?,
            Statement::Print(expression) => self.print(expression, scope, to)?,
            Statement::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.expression(condition, scope)?.truth() {
                        return self.body(body, scope, to);
                    }
                }
                return self.body(otherwise, scope, to);
            }
            Statement::For(each) => {
                let items = self.expression(&each.items, scope)?;
                self.each(each, &items, scope, 1, to)?;
            }
            Statement::Set(target, value) => {
                let value = self.expression(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Statement::SetBlock(target, filters, body) => {
                let text = self.block(body, scope)?;
                let text = self.filters(filters, text, scope)?;
                self.assign(target, text, scope)?;
            }
            Statement::Macro(definition) => {
                let value = self.define(definition, scope, None)?;
                self.name(&definition.name, value, scope);
            }
            Statement::CallBlock(call, caller) => self.call_block(call, caller, scope, to)?,
            Statement::Filter(filters, body) => {
                let text = self.block(body, scope)?;
                let text = self.filters(filters, text, scope)?;
                super::python::write_text(to, &self.budget, &text)?;
            }
            Statement::With(names, body) => {
                let inner = self.scope(Some(scope))?;
                for (target, value) in names {
                    let value = self.expression(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.body(body, &inner, to);
            }
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn print(&self, expression: &Expression, scope: &Rc<Scope>, to: &mut Buffer) -> Outcome<()> {
        let value = self.expression(expression, scope)?;
        super::python::write_text(to, &self.budget, &value)
    }

    fn filters(&self, filters: &[Call], text: Value, scope: &Rc<Scope>) -> Outcome<Value> {
        filters.iter().try_fold(text, |text, call| {
            let arguments = self.arguments(&call.arguments, scope)?;
            filter(&self.budget, &call.name, &text, arguments)
        })
    }

    fn define(
        &self,
        definition: &Rc<Definition>,
        scope: &Rc<Scope>,
        _caller: Option<Rc<Scope>>,
    ) -> Outcome<Value> {
        let _charge = Charge::new(&self.budget, 128)?;
        let scope = Rc::downgrade(scope);
        Ok(Value::Macro(Rc::new(Macro { definition: definition.clone(), scope, _caller, _charge })))
    }

    fn name(&self, name: &Name, value: Value, scope: &Scope) {
        let mut names = scope.names.borrow_mut();
        match names.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => names.push((name.clone(), value)),
        }
    }

    fn assign(&self, target: &Target, value: Value, scope: &Rc<Scope>) -> Outcome<()> {
        match target {
            Target::Name(name) => self.name(name, value, scope),
            Target::Attribute(of, name) => match self.lookup(of, scope) {
                Value::Namespace(namespace) => set(&self.budget, &namespace, name, value)?,
                other => {
                    let got = described(&other);
                    return fault(format_args!("{of}.{name} to set, where {of} is {got}"));
                }
            },
            Target::Tuple(targets) => {
                let parts = values(&self.budget, &value)?;
                if parts.len() != targets.len() {
                    let (got, expected) = (parts.len(), targets.len());
                    return fault(format_args!("{got} values for {expected} names"));
                }
                for (target, part) in targets.iter().zip(parts) {
                    self.assign(target, part, scope)?;
                }
            }
        }
        Ok(())
    }

    fn each(
        &self,
        each: &Rc<Loop>,
        items: &Value,
        scope: &Rc<Scope>,
        depth: usize,
        to: &mut Buffer,
    ) -> Outcome<()> {
        let mut kept = Items::new(&self.budget)?;
        for item in values(&self.budget, items)? {
            if let Some(test) = &each.test {
                let inner = self.scope(Some(scope))?;
                self.assign(&each.target, item.clone(), &inner)?;
                if !self.expression(test, &inner)?.truth() {
                    continue;
                }
            }
            kept.push(item)?;
        }
        let Value::Sequence(items) = self.held(kept)? else { return Ok(()) };
        if items.items.is_empty() {
            let inner = self.scope(Some(scope))?;
            return self.body(&each.otherwise, &inner, to).map(drop);
        }
        let recursive = each.recursive.then(|| (Rc::clone(each), Rc::downgrade(scope)));
        let state = Rc::new(LoopState {
            items: Rc::clone(&items),
            index: Cell::new(0),
            depth,
            changed: RefCell::default(),
            recursive,
            _charge: Charge::new(&self.budget, 128)?,
        });
        let name = Name::from("loop");
        for (i, item) in items.items.iter().enumerate() {
            self.budget.steps(1)?;
            state.index.set(i);
            let inner = self.scope(Some(scope))?;
            self.name(&name, Value::Loop(Rc::clone(&state)), &inner);
            self.assign(&each.target, item.clone(), &inner)?;
            if self.body(&each.body, &inner, to)? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    fn held(&self, items: Items<Value>) -> Outcome<Value> {
        Value::sequence(SequenceKind::List, items)
    }

    fn call_block(
        &self,
        call: &Expression,
        caller: &Rc<Definition>,
        scope: &Rc<Scope>,
        to: &mut Buffer,
    ) -> Outcome<()> {
        let Expression::Postfix(base, steps) = call else { return fault("a call") };
        let Some((Step::Call(arguments), steps)) = steps.split_last() else {
            return fault("a call");
        };
        let called = self.postfix(base, steps, scope)?;
        let arguments = self.arguments(arguments, scope)?;
        let caller = self.define(caller, scope, Some(Rc::clone(scope)))?;
        match &called {
            Value::Macro(called) => {
                let text = self.call_macro(called, arguments, Some(caller))?;
                super::python::write_text(to, &self.budget, &text)
            }
            other => fault(format_args!("a call block of {}", described(other))),
        }
    }

    fn call_macro(
        &self,
        called: &Macro,
        arguments: Arguments,
        caller: Option<Value>,
    ) -> Outcome<Value> {
        let Some(around) = called.scope.upgrade() else {
            return fault("a call of a macro outside of its block");
        };
        let scope = self.scope(Some(&around))?;
        let Definition { name, parameters, body, takes } = &*called.definition;
        let Arguments { positional, mut named } = arguments;
        let mut positional = positional.into_iter();
        for (parameter, default) in parameters {
            let at = named.iter().position(|(name, _)| name == parameter);
            let value = match (positional.next(), at) {
                (Some(_), Some(_)) => {
                    return fault(format_args!("{parameter:?} of the macro {name:?} twice"));
                }
                (Some(value), None) => value,
                (None, Some(at)) => named.swap_remove(at).1,
                (None, None) => match default {
                    Some(default) => self.expression(default, &scope)?,
                    None => Value::Undefined(parameter.clone()),
                },
            };
            self.name(parameter, value, &scope);
        }
        let more: Vec<Value> = positional.collect();
        let [varargs, kwargs, takes_caller] = *takes;
        if !more.is_empty() && !varargs {
            let most = parameters.len();
            return fault(format_args!("more than {most} arguments of the macro {name:?}"));
        }
        if varargs {
            let more = Value::collect(&self.budget, SequenceKind::Tuple, more)?;
            self.name(&"varargs".into(), more, &scope);
        }
        if takes_caller {
            let at = named.iter().position(|(name, _)| &**name == "caller");
            let given = at.map(|at| named.swap_remove(at).1).or(caller);
            let given = given.unwrap_or_else(|| Value::Undefined("caller".into()));
            self.name(&"caller".into(), given, &scope);
        } else if caller.is_some() {
            return fault(format_args!(
                "a call block of the macro {name:?}, which calls no caller"
            ));
        }
        if let Some((other, _)) = named.first().filter(|_| !kwargs) {
            return fault(format_args!("no argument {other:?} of the macro {name:?}"));
        }
        if kwargs {
            let given = Arguments { positional: Vec::new(), named };
            self.name(&"kwargs".into(), super::methods::dict(&self.budget, given)?, &scope);
        }
        let mut text = Buffer::new(&self.budget)?;
        self.body(body, &scope, &mut text)?;
        Ok(Value::of(text))
    }
}

impl Evaluator for Interpreter {
    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn nested<T>(&self, run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let depth = self.depth.get();
        if depth == MOST_NESTED {
            return fault(format_args!(
                "more than {MOST_NESTED} calls and parts within each other"
            ));
        }
        self.depth.set(depth + 1);
        let result = run();
        self.depth.set(depth);
        result
    }

    fn invoke(&self, called: &Value, arguments: Arguments) -> Outcome<Value> {
        match called {
            Value::Macro(called) => self.call_macro(called, arguments, None),
            Value::Loop(state) => {
                let [items] = arguments.bind("loop", ["iterable"], 1)?;
                let Some((each, scope)) = &state.recursive else {
                    return fault("a call of a loop that is not recursive");
                };
                let Some(scope) = scope.upgrade() else {
                    return fault("a call of a loop outside of its block");
                };
                let mut text = Buffer::new(&self.budget)?;
                let items = items.unwrap_or(Value::None);
                self.each(each, &items, &scope, state.depth + 1, &mut text)?;
                Ok(Value::of(text))
            }
            other => fault(format_args!("a call of {}, which is no function", described(other))),
        }
    }
}
