//! The syntax tree of a template. A chain of operators, filters or other steps is stored as a list,
//! so a longer chain does not make the tree deeper. Only nesting in the source does, and the parser
//! limits the nesting.

use std::rc::Rc;

pub type Name = Rc<str>;

pub enum Statement {
    Text(String),
    Print(Expression),
    /// The conditions with their bodies, and the body of `else`.
    If(Vec<(Expression, Body)>, Body),
    For(Rc<Loop>),
    Set(Target, Expression),
    /// Sets a target to the text of a body after applying the filters to it.
    SetBlock(Target, Vec<Call>, Body),
    Macro(Rc<Definition>),
    /// A call of a macro. The definition is the body of the block, which the macro can call as
    /// `caller`.
    CallBlock(Expression, Rc<Definition>),
    Filter(Vec<Call>, Body),
    /// Sets the targets to the given values within the body.
    With(Vec<(Target, Expression)>, Body),
    Break,
    Continue,
}

pub type Body = Vec<Statement>;

pub struct Loop {
    pub target: Target,
    pub items: Expression,
    pub test: Option<Expression>,
    pub recursive: bool,
    pub body: Body,
    pub otherwise: Body,
}

pub struct Definition {
    pub name: Name,
    pub parameters: Vec<(Name, Option<Expression>)>,
    pub body: Body,
    /// For each of the names `varargs`, `kwargs` and `caller`, whether the body uses it.
    pub takes: [bool; 3],
}

pub enum Target {
    Name(Name),
    Attribute(Name, Name),
    Tuple(Vec<Target>),
}

/// The name and the arguments of a filter or a test.
pub struct Call {
    pub name: Name,
    pub arguments: Vec<Argument>,
}

pub enum Argument {
    Positional(Expression),
    Named(Name, Expression),
    /// `*items`
    Spread(Expression),
    /// `**fields`
    SpreadNamed(Expression),
}

pub enum Expression {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Name(Name),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Dict(Vec<(Expression, Expression)>),
    /// `then if condition else otherwise`
    Choice(Box<[Expression; 2]>, Option<Box<Expression>>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Positive(Box<Expression>),
    Concat(Vec<Expression>),
    Chain(Box<Expression>, Vec<(Operator, Expression)>),
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    Postfix(Box<Expression>, Vec<Step>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

pub enum Step {
    Attribute(Name),
    Item(Expression),
    /// Start, end and step.
    Slice(Box<[Option<Expression>; 3]>),
    Call(Vec<Argument>),
    Filter(Call),
    /// A test, and whether `not` negates it.
    Test(Call, bool),
}
