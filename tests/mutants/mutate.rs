//! Makes mutants: copies of a source file with one fault each.

use crate::rules::Rule;

#[derive(Clone, Debug)]
pub struct Mutant {
    pub file: String,
    pub line: usize,
    /// The name of the function or macro that contains the line.
    pub function: String,
    pub class: &'static str,
    pub from: String,
    pub to: String,
    /// The text of the whole changed file.
    pub text: String,
}

impl Mutant {
    pub fn name(&self) -> String {
        let Mutant { file, line, function, from, to, .. } = self;
        format!("{file}:{line} {function}: `{from}` became `{to}`")
    }
}

/// All mutants of a file. A mutant applies a rule, or changes a condition, a statement, a constant
/// or a buffer's index.
pub fn mutants(file: &str, text: &str, rules: &[Rule]) -> Vec<Mutant> {
    let code = masked(text);
    let mut list = Vec::new();
    let mut function = String::new();
    let mut start = 0;
    for (number, line) in code.split_inclusive('\n').enumerate() {
        function = opened(line, &code[start..]).unwrap_or(function);
        let mut add = |class, at: usize, length: usize, to: &str| {
            let (from, end) = (start + at, start + at + length);
            let text = format!("{}{to}{}", &text[..from], &text[end..]);
            let lines = |text: &str| text.lines().nth(number).unwrap_or("").trim().to_string();
            let (file, function) = (file.to_string(), function.clone());
            let (from, to) = (lines(&code), lines(&text));
            list.push(Mutant { file, line: number + 1, function, class, from, to, text });
        };
        for (class, from, to) in rules {
            for (at, _) in line.match_indices(from) {
                // The simulator does not check accesses to its stack. Other memory of the
                // stack follows a thread's private array, so these faults could go undetected.
                let private =
                    ["i < READS", "q < QUADS", "h < HEADS"].iter().any(|l| line.contains(l));
                if private && (*to == " <= " || to.contains("READS + 1")) {
                    continue;
                }
                add(class, at, from.len(), to);
            }
        }
        for (at, length) in conditions(line) {
            add("guard", at, length, "true");
            add("guard", at, length, "false");
        }
        if let Some((at, length)) = statement(line) {
            add("statement", at, length, ";");
        }
        if let Some(at) = line.find("[[buffer(") {
            let digit = line.as_bytes()[at + 9] - b'0';
            add("buffers", at + 9, 1, &(if digit == 0 { 1 } else { digit - 1 }).to_string());
        }
        for at in integers(line) {
            let value: u32 = line[at.clone()].parse().unwrap_or(0);
            add("constant", at.start, at.len(), &(value + 1).to_string());
        }
        start += line.len();
    }
    list
}

/// Replaces comments, `#include` lines and `#pragma` lines by spaces.
fn masked(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut blank = |from: usize, to: usize| {
        bytes[from..to].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
    };
    let mut at = 0;
    while let Some(next) = text[at..].find("//").into_iter().chain(text[at..].find("/*")).min() {
        let from = at + next;
        let end = if text[from..].starts_with("//") { "\n" } else { "*/" };
        let to = text[from..].find(end).map_or(text.len(), |length| from + length + end.len());
        blank(from, to);
        at = to;
    }
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if line.starts_with("#include") || line.starts_with("#pragma") {
            blank(start, start + line.len());
        }
        start += line.len();
    }
    String::from_utf8(bytes).unwrap()
}

/// The name of the function or macro whose definition begins on this line.
fn opened(line: &str, rest: &str) -> Option<String> {
    let name = |text: &str| {
        let name = text.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
        name.unwrap_or("").to_string()
    };
    if line.starts_with("#define") || line.starts_with("  MLXP_KERNEL") {
        let text = line.trim_start_matches("#define ");
        return Some(match line.split_once('"') {
            Some((_, quoted)) => quoted.split('"').next().unwrap_or("").to_string(),
            None => name(text.split('(').next().unwrap_or("")),
        });
    }
    let outside = line.starts_with(|c: char| c.is_alphabetic() || c == '[');
    let body = rest.find(['{', ';']).is_some_and(|at| rest.as_bytes()[at] == b'{');
    let open = line.replace("[[kernel]] ", "").replace("<typename T>", "");
    let parenthesis = open.find('(').filter(|_| outside && body && !line.starts_with("struct"))?;
    Some(name(&open[..parenthesis]))
}

/// Finds the condition of an `if` or of a conditional expression, and the operands of its `||`.
fn conditions(line: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut whole = None;
    if let Some(at) = line.find("if (")
        && let Some(end) = line.rfind(") {")
    {
        whole = Some((at + 4, end));
    } else if let Some(end) = line.find(" ? ") {
        let head = &line[..end];
        let starts = ["(", "= ", "return ", "      "];
        let start = starts.iter().filter_map(|s| head.rfind(s).map(|at| at + s.len())).max();
        whole = start.map(|start| (start, end));
    }
    if let Some((start, end)) = whole.filter(|(start, end)| start < end) {
        found.push((start, end - start));
        let text = &line[start..end];
        let mut at = start;
        for operand in text.split(" || ") {
            if operand.len() < text.len() {
                found.push((at, operand.len()));
            }
            at += operand.len() + 4;
        }
    }
    found
}

/// Finds an assignment or a `return` without a value. A mutant omits it.
fn statement(line: &str) -> Option<(usize, usize)> {
    let text = line.trim();
    let start = line.find(text)?;
    let assigned = [" = ", " += ", " *= "].iter().filter_map(|op| text.find(op)).min();
    let left = assigned.map(|at| text[..at].replace(" + ", "").replace(" * ", ""));
    let plain = left.is_some_and(|left| !left.replace("device packed2<T>*", "").contains(' '));
    (text.ends_with(';') && (plain || text == "return;")).then_some((start, text.len()))
}

/// Finds integer constants. Skips parts of names and fractions, and indices that a rule changes.
fn integers(line: &str) -> Vec<std::ops::Range<usize>> {
    let bytes = line.as_bytes();
    let part = |b: u8| b.is_ascii_alphanumeric() || b"_.\"[".contains(&b);
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes[at..].iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            at += 1;
            continue;
        }
        let end = at + digits;
        let suffix = bytes.get(end).is_some_and(|b| part(*b) && *b != b'u');
        let binding = line[..at].ends_with("(") && line.contains("[[");
        let word = at > 0 && part(bytes[at - 1]);
        if !word && !suffix && !binding {
            found.push(at..end);
        }
        at = end;
    }
    found
}
