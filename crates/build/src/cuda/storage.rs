//! Threadgroup variables and function constants.

use super::{Constant, Fault, Source};

/// `threadgroup float x[32];` in a function becomes `__shared__`.
pub(super) fn threadgroup_variables(source: &mut Source) {
    for i in 0..source.tokens.len() {
        let tokens = &source.tokens;
        let starts = tokens.at(i) == "threadgroup"
            && matches!(tokens.before(i), ";" | "{" | "}" | "static" | ")");
        if !starts || tokens.in_struct(i) {
            continue;
        }
        let mut at = i + 1;
        while !matches!(tokens.at(at), ";" | "=" | "[" | "," | "(" | "{" | "*" | "&" | "") {
            at = if tokens.at(at) == "<" { tokens.close(at) + 1 } else { at + 1 };
        }
        if matches!(tokens.at(at), ";" | "[" | ",") {
            source.tokens.list[i].text = "__shared__".to_owned();
        }
    }
}

/// Gives function constants their values and makes constants of the program compile-time ones.
/// Returns the names of function constants without a value, which a kernel may have but not use.
pub(super) fn function_constants(
    source: &mut Source,
    constants: &[Constant],
) -> Result<Vec<String>, Fault> {
    let mut missing = Vec::new();
    let mut depth = 0;
    let mut i = 0;
    while i < source.tokens.len() {
        match source.tokens.at(i) {
            "{" if !opens_namespace(source, i) => depth += 1,
            "}" if depth > 0 => depth -= 1,
            "constant" if depth == 0 && begins_statement(source, i) => {
                i = constant(source, i, constants, &mut missing)?
            }
            _ => {}
        }
        i += 1;
    }
    Ok(missing)
}

fn begins_statement(source: &Source, i: usize) -> bool {
    let before = source.tokens.before(i);
    matches!(before, "" | ";" | "{" | "}" | "static" | "constexpr") || before.is_empty()
}

fn opens_namespace(source: &Source, brace: usize) -> bool {
    let tokens = &source.tokens;
    tokens.before(brace) == "namespace"
        || (brace > 1 && tokens.before(brace - 1) == "namespace")
        || (brace > 1 && tokens.before(brace) == "\"C\"")
}

/// Rewrites the declaration at `constant` and returns its last token.
fn constant(
    source: &mut Source,
    start: usize,
    values: &[Constant],
    missing: &mut Vec<String>,
) -> Result<usize, Fault> {
    let tokens = &source.tokens;
    let Some(end) = (start..tokens.len()).find(|&k| matches!(tokens.at(k), ";" | "{" | "(")) else {
        return Ok(start);
    };
    let attribute = (start..end).find(|&k| tokens.at(k) == "function_constant");
    // The search for the end stops at the attribute's parenthesis.
    let attribute = attribute.filter(|&k| tokens.at(k + 1) == "(");
    let Some(attribute) = attribute else {
        let array = (start..end).any(|k| tokens.at(k) == "[");
        source.tokens.list[start].text =
            if array { "__constant__ const" } else { "constexpr" }.to_owned();
        return Ok(start);
    };
    let open = (start..attribute).rev().find(|&k| tokens.at(k) == "[").unwrap_or(attribute) - 1;
    let close = tokens.close(open);
    let name = tokens.at(open - 1).to_owned();
    let kind = tokens.join(start + 1..open - 1);
    let index: Option<u32> = tokens.at(attribute + 2).parse().ok();
    let value = values.iter().find(|value| Some(value.index) == index);
    let Some(value) = value else {
        missing.push(name);
        source.tokens.blank(start..close + 1);
        return Ok(close);
    };
    let Some(literal) = literal(value) else {
        let text = format!("the function constant {name} has a type that only Metal knows");
        return Err(source.fault(start, text));
    };
    source.tokens.blank(start..close + 1);
    source.tokens.list[start].text = match value.data_type {
        // Halves have no constant expressions.
        16 => format!(
            "constexpr struct msl_constant_{name} {{ __device__ operator half() const {{ return \
             {literal}; }} }} {name}{{}}"
        ),
        _ => format!("constexpr {kind} {name} = {literal}"),
    };
    Ok(close)
}

/// The value, for a type with this number of `MTLDataType`.
fn literal(value: &Constant) -> Option<String> {
    let bits = value.bits;
    Some(match value.data_type {
        3 => {
            let float = f32::from_bits(bits as u32);
            match float.is_finite() {
                true => format!("{float:e}f"),
                false => format!("__builtin_bit_cast(float, {}u)", bits as u32),
            }
        }
        16 => format!("__ushort_as_half((unsigned short){})", bits as u16),
        29 => format!("(int){}u", bits as u32),
        33 => format!("{}u", bits as u32),
        37 => format!("(short){}", bits as u16 as i16),
        41 => format!("(unsigned short){}", bits as u16),
        45 => format!("(signed char){}", bits as u8 as i8),
        49 => format!("(unsigned char){}", bits as u8),
        53 => (bits as u8 != 0).to_string(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Constant, Request, rewrite};

    #[test]
    fn constants_get_values() {
        let source = "constant uint width [[function_constant(0)]];\n\
                      constant bool wide [[function_constant(3)]];\n\
                      constant float half_of [[function_constant(1)]];\n\
                      constant float table[2] = {1, 2};\nconstant float pi = 3.0f;\n\
                      kernel void f() { threadgroup float x[4]; threadgroup float* y = x; }";
        let constants = [
            Constant { index: 0, data_type: 33, bits: 7 },
            Constant { index: 1, data_type: 3, bits: 0x3f00_0000 },
            Constant { index: 3, data_type: 53, bits: 1 },
        ];
        let request = Request { source, kernel: "f", constants: &constants, ..Request::default() };
        let text = rewrite(&request).unwrap().text;
        for part in [
            "constexpr uint width = 7u",
            "constexpr bool wide = true",
            "constexpr float half_of = 5e-1f",
            "__constant__ const float table[2]",
            "constexpr float pi = 3.0f;",
            "__shared__ float x[4]; threadgroup float* y = x;",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // A constant that the kernel does not use needs no value.
        let none = Request { constants: &[], ..request.clone() };
        assert!(!rewrite(&none).unwrap().text.contains("width"));
        let used = source.replace("threadgroup float x[4]", "threadgroup float x[width]");
        let missing = rewrite(&Request { source: &used, ..none }).unwrap_err();
        assert!(missing.text.contains("no value for the function constant width"), "{missing}");
    }
}
