//! Converts a module of AIR (Apple's LLVM IR) to a module for the host. Address spaces are removed,
//! and intrinsics become functions of runtime.metal. The executor, which runs kernels, provides the
//! memory of threadgroup variables.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::signature::{Parameter, Signature};
use crate::constants::Constants;
use crate::error::{Error, Result};
use crate::module::ArgumentKind;

/// Returns the converted module. It has an additional function `msl_call_<serial>`, through which
/// the executor calls the kernel.
pub(super) fn retarget(
    text: &str,
    kernel: &str,
    signature: &Signature,
    constants: &Constants,
    serial: usize,
) -> Result<String> {
    let lines: Vec<String> = text.lines().filter(|line| !superfluous(line)).map(plain).collect();
    let mut variables = BTreeMap::new();
    let mut out = String::new();
    let mut types = None;
    let mut body: Option<Vec<String>> = None;
    for line in &lines {
        if let Some(open) = &mut body {
            open.push(line.clone());
            if line == "}" {
                function(&mut out, &std::mem::take(open), &variables);
                body = None;
            }
        } else if line.starts_with("define") {
            let (head, parameters) = header(line)?;
            if head.ends_with(&format!("@{kernel}")) {
                types = Some(parameters);
            }
            body = Some(vec![line.clone()]);
        } else if let Some((name, definition)) = line.split_once(" = ") {
            global(&mut out, name, definition, signature, constants, &mut variables)?;
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    out.push_str("declare ptr @msl_threadgroup_variable(ptr, i64, ptr)\n");
    let types = types.ok_or_else(|| Error::Load(format!("no function '{kernel}'")))?;
    call(&mut out, kernel, signature, &types, serial)?;
    Ok(out)
}

/// Whether the line can be dropped, because only Apple's back end or a debugger uses it.
fn superfluous(line: &str) -> bool {
    let starts = ["target ", "source_filename", "!", "attributes #", ";"];
    starts.iter().any(|start| line.starts_with(start))
        || line.contains("@llvm.lifetime.")
        || line.contains("@llvm.assume")
}

/// Removes address spaces, attribute groups, metadata and sections from a line, and renames
/// intrinsics. Adds `sanitize_address` to the definitions of functions, except initializers of
/// globals.
fn plain(line: &str) -> String {
    let line = line.split(", !").next().unwrap_or(line);
    let line = line.split(" ; preds").next().unwrap_or(line).trim_end();
    let mut out = String::new();
    let mut rest = line;
    if line.starts_with('@') && line.contains(" addrspace(3) global ") {
        let (name, definition) = line.split_once(" = ").unwrap_or((line, ""));
        out = format!("{name} = threadgroup ");
        rest = definition;
    }
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with(" addrspace(") {
            rest.find(')').map(|end| end + 1)
        } else if let Some(group) = rest.strip_prefix(" #") {
            let digits = group.find(|c: char| !c.is_ascii_digit());
            Some(digits.map_or(rest.len(), |end| end + 2))
        } else if rest.starts_with(" \"air-") {
            rest[2..].find('"').map(|end| end + 3)
        } else if rest.starts_with(", section \"") || rest.starts_with(" section \"") {
            let open = rest.find('"').unwrap_or_default() + 1;
            rest[open..].find('"').map(|end| open + end + 1)
        } else {
            None
        };
        if let Some(skipped) = skipped {
            rest = &rest[skipped..];
        } else if let Some(kind) = rest.strip_prefix("@llvm.fmuladd.") {
            out.push_str("@air_fmuladd_"); // llvm.fmuladd may round once or twice
            rest = kind;
        } else if let Some(name) = rest.strip_prefix("@air.") {
            let end = name.find(|c: char| !is_name(c)).unwrap_or(name.len());
            out.push_str(&intrinsic(&name[..end]));
            rest = &name[end..];
        } else {
            out.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    let watched = out.starts_with("define") && !out.contains("@_GLOBAL__sub_I");
    if watched && let Some(head) = out.strip_suffix('{') {
        return format!("{head}sanitize_address {{");
    }
    out
}

/// Returns the name of the function that replaces an intrinsic. Barriers call the executor
/// directly, because the executor identifies a barrier by the address of the call.
fn intrinsic(name: &str) -> String {
    match name {
        "wg.barrier" => "@msl_threadgroup_barrier".to_string(),
        "simdgroup.barrier" => "@msl_simdgroup_barrier".to_string(),
        _ => format!("@air_{}", name.replace('.', "_")),
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '$' | '-')
}

/// Rewrites a global variable. Function constants get their values. For a threadgroup variable,
/// adds to `variables` the call that gets its memory from the executor.
fn global(
    out: &mut String,
    name: &str,
    definition: &str,
    signature: &Signature,
    constants: &Constants,
    variables: &mut BTreeMap<String, String>,
) -> Result<()> {
    let name = name.trim_start_matches('@');
    if let Some((index, _)) = signature.constants.iter().find(|(_, variable)| *variable == name) {
        let Some(bits) = constants.0.get(index) else {
            return Err(Error::FunctionConstant(format!("function constant {index} is not set")));
        };
        let kind = definition.split(" constant ").nth(1).and_then(|rest| rest.split(' ').next());
        let kind = kind.filter(|kind| kind.starts_with('i')).ok_or_else(|| {
            Error::FunctionConstant(format!("function constant {index} is no integer"))
        })?;
        let _ = writeln!(out, "@{name} = internal constant {kind} {bits}");
        return Ok(());
    }
    let kind = definition.strip_prefix("threadgroup internal unnamed_addr global ");
    let Some(kind) = kind.and_then(|rest| {
        rest.split(" undef").next().and_then(|rest| rest.split(" zeroinitializer").next())
    }) else {
        let _ = writeln!(out, "@{name} = {definition}");
        return Ok(());
    };
    let serial = variables.len();
    let shown = shown_name(name);
    let _ = writeln!(
        out,
        "@msl.key.{serial} = internal global i8 0\n\
         @msl.name.{serial} = internal constant [{} x i8] c\"{shown}\\00\"",
        shown.len() + 1,
    );
    let size = format!("ptrtoint (ptr getelementptr ({kind}, ptr null, i32 1) to i64)");
    let ask = format!(
        "  %msl.tg.{serial} = call ptr @msl_threadgroup_variable(ptr @msl.key.{serial}, \
         i64 {size}, ptr @msl.name.{serial})"
    );
    variables.insert(name.to_string(), ask);
    Ok(())
}

/// Extracts a variable's name from its mangled name: `local_sums` from `_ZZ...E10local_sums`.
fn shown_name(mangled: &str) -> &str {
    let end = mangled.split('.').next().unwrap_or(mangled);
    let word = end.rfind(|c: char| c.is_ascii_digit()).map_or(end, |at| &end[at + 1..]);
    if word.is_empty() { end } else { word }
}

/// Writes a function. At its start, the function gets the addresses of its threadgroup variables
/// from the executor.
fn function(out: &mut String, lines: &[String], variables: &BTreeMap<String, String>) {
    let mut start = String::new();
    let mut rest = Vec::new();
    let mut asked = Vec::new();
    for line in &lines[1..] {
        let mut line = line.clone();
        for (name, ask) in variables {
            let local = ask.trim_start().split(' ').next().unwrap_or_default();
            if replace_name(&mut line, name, local) && !asked.contains(&ask) {
                asked.push(ask);
            }
        }
        rest.push(line);
    }
    for ask in asked {
        start.push_str(ask);
        start.push('\n');
    }
    let mut serial = 0;
    for line in &mut rest {
        hoist(line, &mut start, &mut serial);
    }
    let _ = writeln!(out, "{}\n{start}{}", lines[0], rest.join("\n"));
}

/// Replaces each `@name` that is not a part of a longer name. Returns whether there was one.
fn replace_name(line: &mut String, name: &str, local: &str) -> bool {
    let global = format!("@{name}");
    let mut from = 0;
    let mut found = false;
    while let Some(at) = line[from..].find(&global).map(|at| from + at) {
        let end = at + global.len();
        if line[end..].chars().next().is_some_and(is_name) {
            from = end;
            continue;
        }
        line.replace_range(at..end, local);
        from = at + local.len();
        found = true;
    }
    found
}

/// Converts constant address expressions to instructions at the start of the function. In the
/// simulator, the address of a threadgroup variable is not a constant.
fn hoist(line: &mut String, start: &mut String, serial: &mut usize) {
    while let Some(at) = line.find("getelementptr inbounds (") {
        let open = at + "getelementptr inbounds ".len();
        let Some(close) = line[open..].find(')').map(|close| open + close) else { return };
        let inner = line[open + 1..close].to_string();
        let _ = writeln!(start, "  %msl.at.{serial} = getelementptr inbounds {inner}");
        line.replace_range(at..=close, &format!("%msl.at.{serial}"));
        *serial += 1;
    }
}

/// Splits the first line of a function definition. Returns the text before the parameters, and the
/// types of the parameters.
fn header(line: &str) -> Result<(&str, Vec<String>)> {
    let (head, rest) = line.split_once('(').unwrap_or((line, ""));
    let (mut depth, mut parts, mut part) = (0, Vec::new(), String::new());
    for c in rest.chars() {
        match c {
            ')' if depth == 0 => break,
            ',' if depth == 0 => parts.push(std::mem::take(&mut part)),
            _ => {
                depth += i32::from(matches!(c, '(' | '<' | '['));
                depth -= i32::from(matches!(c, ')' | '>' | ']'));
                part.push(c);
            }
        }
    }
    parts.extend((!part.is_empty()).then_some(part));
    let kind = |part: &String| {
        let part = part.trim();
        let end = if part.starts_with('<') { part.find('>').map(|end| end + 1) } else { None };
        part[..end.or(part.find(' ')).unwrap_or(part.len())].to_string()
    };
    Ok((head, parts.iter().map(kind).collect()))
}

/// Writes the function `void msl_call_<serial>(const msl::Arguments&)`, which passes the arguments
/// to the kernel. It is not instrumented.
fn call(
    out: &mut String,
    kernel: &str,
    signature: &Signature,
    types: &[String],
    serial: usize,
) -> Result<()> {
    if types.len() != signature.parameters.len() {
        return Err(Error::Load(format!("'{kernel}' has parameters that its table lacks")));
    }
    let _ = writeln!(out, "define void @msl_call_{serial}(ptr %a) {{");
    for (i, table) in ["buffers", "threadgroup", "values"].iter().enumerate() {
        let _ = writeln!(out, "  %{table}.at = getelementptr ptr, ptr %a, i64 {i}");
        let _ = writeln!(out, "  %{table} = load ptr, ptr %{table}.at");
    }
    let mut passed = Vec::new();
    for (i, (parameter, kind)) in signature.parameters.iter().zip(types).enumerate() {
        match parameter {
            Parameter::Memory(argument) => {
                let table = match argument.kind {
                    ArgumentKind::Buffer => "%buffers",
                    ArgumentKind::Threadgroup => "%threadgroup",
                };
                let index = argument.index;
                let _ = writeln!(out, "  %at.{i} = getelementptr ptr, ptr {table}, i64 {index}");
                let _ = writeln!(out, "  %p.{i} = load ptr, ptr %at.{i}");
            }
            Parameter::Value(_, row) => {
                let wide = kind.replace("i16", "i32");
                let _ =
                    writeln!(out, "  %at.{i} = getelementptr [4 x i32], ptr %values, i64 {row}");
                let (narrow, loaded) = (wide != *kind, if wide == *kind { "p" } else { "wide" });
                let _ = writeln!(out, "  %{loaded}.{i} = load {wide}, ptr %at.{i}, align 4");
                if narrow {
                    let _ = writeln!(out, "  %p.{i} = trunc {wide} %wide.{i} to {kind}");
                }
            }
        }
        passed.push(format!("{kind} %p.{i}"));
    }
    let _ = writeln!(out, "  call void @{kernel}({})\n  ret void\n}}", passed.join(", "));
    Ok(())
}
