//! Rewrites threadgroup variables, function constants and program constants.

use super::instances::Source;
use super::request::{Constant, Fault};
use crate::front::{self, Tokens};

/// Turns declarations such as `threadgroup float x[32];` in a function into `__shared__`.
pub(super) fn threadgroup_variables(tokens: &mut Tokens) {
    for found in front::threadgroup_variables(tokens) {
        tokens.list[found.range.start].text = "__shared__".to_owned();
    }
}

/// Gives function constants their values, and rewrites the declarations of the program's other
/// constants. Returns the names of the function constants without a value. A kernel must not use
/// them, but the source may declare them.
pub(super) fn function_constants(
    source: &mut Source,
    values: &[Constant],
) -> Result<Vec<String>, Fault> {
    let mut missing = Vec::new();
    for found in front::function_constants(&source.tokens) {
        let (name, kind, start) = (found.name, found.kind, found.range.start);
        source.tokens.blank(found.range);
        let Some(value) = values.iter().find(|value| Some(value.index) == found.index) else {
            missing.push(name);
            continue;
        };
        let Some(literal) = literal(value) else {
            let text = format!("the function constant {name} has a type that only Metal knows");
            return Err(source.fault(start, text));
        };
        source.tokens.list[start].text = match value.data_type {
            // A constant expression cannot contain CUDA's half type, so wrap the value in a struct.
            16 => format!(
                "constexpr struct msl_constant_{name} {{ __device__ operator half() const {{ \
                 return {literal}; }} }} {name}{{}}"
            ),
            _ => format!("constexpr {kind} {name} = {literal}"),
        };
    }
    constants(&mut source.tokens);
    Ok(missing)
}

/// Replaces `constant` outside of functions, as in `constant float pi = 3.0f;`, with `constexpr`,
/// or with `__constant__ const` for an array.
fn constants(tokens: &mut Tokens) {
    let mut depth = 0;
    for i in 0..tokens.len() {
        let begins = || matches!(tokens.before(i), "" | ";" | "{" | "}" | "static" | "constexpr");
        match tokens.at(i) {
            "{" if !opens_namespace(tokens, i) => depth += 1,
            "}" if depth > 0 => depth -= 1,
            "constant" if depth == 0 && begins() => {
                let mut declared = (i..tokens.len()).map(|k| tokens.at(k));
                let is_array = declared.find(|mark| matches!(*mark, ";" | "{" | "(" | "["));
                let text = if is_array == Some("[") { "__constant__ const" } else { "constexpr" };
                tokens.list[i].text = text.to_owned();
            }
            _ => {}
        }
    }
}

fn opens_namespace(tokens: &Tokens, brace: usize) -> bool {
    tokens.before(brace) == "namespace"
        || (brace > 1 && tokens.before(brace - 1) == "namespace")
        || (brace > 1 && tokens.before(brace) == "\"C\"")
}

/// Returns the value as a literal. Its `MTLDataType` determines the type of the literal.
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
        // A function constant that the kernel does not use needs no value.
        let none = Request { constants: &[], ..request.clone() };
        assert!(!rewrite(&none).unwrap().text.contains("width"));
        let used = source.replace("threadgroup float x[4]", "threadgroup float x[width]");
        let missing = rewrite(&Request { source: &used, ..none }).unwrap_err();
        assert!(missing.text.contains("no value for the function constant width"), "{missing}");
    }
}
