//! Limits of filters and methods whose output grows with a number, which minijinja does not have.

use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::MOST_BYTES;

/// The most columns, items or digits that a number may request, which is the limit of minijinja's
/// `range`.
const MOST: i64 = 100_000;

/// Replaces minijinja's filters and methods by limited ones.
pub(super) fn add_to(environment: &mut Environment) {
    environment.add_filter("indent", |state: &mut State, arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values();
        within_limits(&arguments)?;
        let lines =
            arguments.first().and_then(Value::as_str).map_or(1, |text| text.lines().count());
        let width = arguments.iter().flat_map(numbers).max().unwrap_or(0);
        match lines.saturating_mul(width.unsigned_abs() as usize) <= MOST_BYTES {
            true => Value::from_function(filters::indent).call(state, &arguments),
            false => Err(too_much(&width)),
        }
    });
    environment.add_filter("batch", |state: &mut State, arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values();
        within_limits(&arguments)?;
        Value::from_function(filters::batch).call(state, &arguments)
    });
    environment.add_filter("slice", |state: &mut State, arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values();
        within_limits(&arguments)?;
        Value::from_function(filters::slice).call(state, &arguments)
    });
    environment.add_filter("format", |state: &mut State, arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values();
        within_widths(&arguments)?;
        Value::from_function(filters::format).call(state, &arguments)
    });
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        if method == "format" {
            within_widths(std::slice::from_ref(value))?;
            within_widths(arguments)?;
        }
        unknown_method_callback(state, value, method, arguments)
    });
}

fn too_much(asked: &dyn std::fmt::Display) -> Error {
    let expected = format!("expected a number of at most {MOST}, got {asked}");
    Error::new(ErrorKind::InvalidOperation, expected)
}

/// The integer that an argument is, or the integers among named arguments.
fn numbers(argument: &Value) -> Vec<i64> {
    if argument.is_kwargs() {
        let names = argument.try_iter().into_iter().flatten();
        let given = names.filter_map(|name| argument.get_item(&name).ok());
        return given.flat_map(|value| numbers(&value)).collect();
    }
    match argument.is_number() {
        // A number that does not fit an i64 is above any limit.
        true => vec![argument.as_i64().unwrap_or(i64::MAX)],
        false => Vec::new(),
    }
}

fn within_limits(arguments: &[Value]) -> Result<(), Error> {
    match arguments.iter().flat_map(numbers).find(|&number| number > MOST) {
        Some(number) => Err(too_much(&number)),
        None => Ok(()),
    }
}

/// Checks the numbers in format strings, which are widths and precisions, and the arguments of `*`.
fn within_widths(arguments: &[Value]) -> Result<(), Error> {
    for text in arguments.iter().filter_map(Value::as_str) {
        let mut written = text.split(|c: char| !c.is_ascii_digit());
        let digits = MOST.ilog10() as usize;
        if let Some(number) = written.find(|run| run.trim_start_matches('0').len() > digits) {
            return Err(too_much(&number));
        }
    }
    let starred = arguments.first().and_then(Value::as_str).is_some_and(|text| text.contains('*'));
    if starred { within_limits(arguments) } else { Ok(()) }
}
