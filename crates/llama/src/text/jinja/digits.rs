//! Formats one value as Python does, with a width and a precision.

use super::budget::{Budget, Buffer, Outcome, fault};
use super::python::{described, float};
use super::value::Value;

/// The maximum number of digits, and the maximum precision.
const MOST_DIGITS: usize = 1000;

/// The format of one value.
#[derive(Default)]
pub struct Spec {
    pub fill: Option<char>,
    pub align: Option<char>,
    pub sign: Option<char>,
    pub alternate: bool,
    pub zero: bool,
    pub width: usize,
    pub group: Option<char>,
    pub precision: Option<usize>,
    pub kind: Option<char>,
}

/// Reads a string character by character.
pub struct Scan<'a>(pub &'a str);

impl Scan<'_> {
    pub fn next(&mut self) -> Option<char> {
        self.next_if(|_| true)
    }

    pub fn next_if(&mut self, wanted: impl Fn(char) -> bool) -> Option<char> {
        let c = self.0.chars().next().filter(|c| wanted(*c))?;
        self.0 = self.0.get(c.len_utf8()..).unwrap_or_default();
        Some(c)
    }

    pub fn skip(&mut self, c: char) -> bool {
        self.next_if(|next| next == c).is_some()
    }

    /// Reads a decimal number. Returns `usize::MAX` if the number is too large.
    pub fn number(&mut self) -> Option<usize> {
        let mut digits = String::new();
        while let Some(digit) = self.next_if(|c| c.is_ascii_digit()) {
            digits.push(digit);
        }
        (!digits.is_empty()).then(|| digits.parse().unwrap_or(usize::MAX))
    }
}

/// Appends `text`, padded to the width of the format.
pub fn pad(to: &mut Buffer, sign: &str, text: &str, spec: &Spec, default: char) -> Outcome<()> {
    let length = sign.chars().count() + text.chars().count();
    let missing = spec.width.saturating_sub(length);
    let zero = spec.zero && spec.align != Some('<');
    let fill = spec.fill.unwrap_or(if zero { '0' } else { ' ' });
    let fill = fill.encode_utf8(&mut [0; 4]).to_owned();
    let align = match spec.align.unwrap_or(default) {
        '>' if zero && spec.fill.is_none() => '=',
        other => other,
    };
    let before = match align {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    if align == '=' {
        to.push(sign)?;
        to.repeat(&fill, before)?;
    } else {
        to.repeat(&fill, before)?;
        to.push(sign)?;
    }
    to.push(text)?;
    to.repeat(&fill, missing - before)
}

/// Appends a formatted number. An integer gets at least `least` digits.
pub fn number(
    budget: &Budget,
    to: &mut Buffer,
    value: &Value,
    spec: &Spec,
    least: usize,
) -> Outcome<()> {
    let kind = spec.kind.unwrap_or(if value.as_int().is_some() { 'd' } else { 'r' });
    if spec.precision.is_some_and(|digits| digits > MOST_DIGITS) || least > MOST_DIGITS {
        return fault(format_args!("a number of more than {MOST_DIGITS} digits"));
    }
    budget.steps(100)?;
    let character = |int: i128| u32::try_from(int).ok().and_then(char::from_u32);
    let (negative, mut digits) = match (value.as_int(), kind) {
        (Some(int), 'c') => match character(int) {
            Some(c) => (false, c.to_string()),
            None => return fault("a character of that number"),
        },
        (Some(int), 'd' | 'n' | 'x' | 'X' | 'o' | 'b') => {
            let size = int.unsigned_abs();
            let (prefix, digits) = match kind {
                'x' => ("0x", format!("{size:x}")),
                'X' => ("0X", format!("{size:X}")),
                'o' => ("0o", format!("{size:o}")),
                'b' => ("0b", format!("{size:b}")),
                _ => ("", size.to_string()),
            };
            let digits = format!("{digits:0>least$}");
            (int < 0, if spec.alternate { format!("{prefix}{digits}") } else { digits })
        }
        _ => {
            let Some(float) = value.as_float() else {
                return fault(format_args!("a number for {kind:?}, got {}", described(value)));
            };
            (float.is_sign_negative() && !float.is_nan(), decimal(float.abs(), kind, spec)?)
        }
    };
    if let Some(group) = spec.group {
        digits = grouped(&digits, group);
    }
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    pad(to, sign, &digits, spec, '>')
}

/// Formats a number that is not negative.
fn decimal(value: f64, kind: char, spec: &Spec) -> Outcome<String> {
    let precision = spec.precision.unwrap_or(6);
    let upper = kind.is_ascii_uppercase();
    if !value.is_finite() {
        let text = float(value);
        return Ok(if upper { text.to_uppercase() } else { text });
    }
    let exponent = |digits: usize| {
        let text = format!("{value:.digits$e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        (mantissa.to_owned(), exponent)
    };
    let written = |mantissa: &str, exponent: i32| {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    };
    let text = match kind {
        'e' | 'E' => {
            let (mantissa, exponent) = exponent(precision);
            written(&mantissa, exponent)
        }
        'f' | 'F' => format!("{value:.precision$}"),
        '%' => format!("{:.precision$}%", value * 100.0),
        'r' if spec.precision.is_none() => float(value),
        'g' | 'G' | 'n' | 'r' => {
            let digits = precision.max(1);
            let (mantissa, at) = exponent(digits - 1);
            let short = |text: &str| match text.contains('.') && !spec.alternate {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text.to_owned(),
            };
            let most = digits as i32 - i32::from(kind == 'r');
            if at < -4 || at >= most {
                written(&short(&mantissa), at)
            } else {
                let decimals = usize::try_from(digits as i32 - 1 - at).unwrap_or(0);
                let text = short(&format!("{value:.decimals$}"));
                if kind == 'r' && !text.contains('.') { text + ".0" } else { text }
            }
        }
        other => return fault(format_args!("an unknown format {other:?} of a number")),
    };
    Ok(if upper { text.to_uppercase() } else { text })
}

fn grouped(digits: &str, group: char) -> String {
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (whole, rest) = digits.split_at(end);
    let mut text = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            text.push(group);
        }
        text.push(digit);
    }
    text + rest
}
