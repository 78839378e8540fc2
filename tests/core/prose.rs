//! Comments and documents are plain American English.

use std::fs;
use std::path::Path;

use anyhow::Context;
use regex::Regex;

use crate::support::{Checked, root};
use crate::tidy::{files, show};

/// Regular expressions for phrases that are hard to read, with advice on a replacement.
const PATTERNS: [(&str, &str); 12] = [
    (r"\bof (its|their|one's|your|our|my|a user's) own\b", "its own, or a separate"),
    (r"\bso many\b", "this many, or the count by its name"),
    (r"\b[Nn]one: ", "`None` and a verb"),
    (r"(^|[.:] )What [^?.]*(\.( |$)|$)", "a noun in place of a clause that begins with What"),
    (
        r"^(As (many|much|there|of|with)|The same|Those|That of|That which|One that|Which)\b",
        "a comment that stands alone",
    ),
    (r"\bthe same of\b", "a sentence that names both"),
    (r"\bas of (a|an|the|in|of|[0-9])\b", "a sentence that names both"),
    (r"\bas there\b", "a sentence that names both"),
    (r"\bwhat (writes|reads|runs|takes) much\b", "the thing by its name"),
    (r"\bErrors: ", "a section `# Errors`"),
    (r"\bbut for\b", "except, or except for"),
    (BRITISH, "the American spelling"),
];
const BRITISH: &str = r"(?i)(colour|behaviour|neighbour|favour|honour|\bcentre[sd]?\b|licence|labelled|modelled|cancelled|whilst|catalogue|artefact|analys(e[sd]?|ing)\b|(norm|quant|optim|initi|seri|synchron|organ|recogn|summar|gener|special|vector|parallel|token|material|minim|maxim|util)(al|ar)?(is)(e[sdr]?|ing|ation)\b)";

/// The prefix of a comment in the file's language. In Markdown it is empty, because all lines are
/// prose.
fn comment(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "rs" | "h" | "cpp" | "metal" => Some("//"),
        "py" | "sh" | "cmake" => Some("#"),
        "md" => Some(""),
        _ => None,
    }
}

/// The paragraphs of a file's prose. Each is joined into one line, with the number of its first
/// line.
fn paragraphs(path: &Path, text: &str) -> Vec<(usize, String)> {
    let Some(mark) = comment(path) else { return Vec::new() };
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut open, mut code) = (false, false);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let prose = match mark {
            "" => Some(line),
            _ if line.starts_with("#!") => None,
            _ => line.strip_prefix(mark),
        };
        let Some(prose) = prose else {
            open = false;
            // The line has a comment after code.
            if let Some((_, prose)) = line.split_once(&format!(" {mark} ")) {
                found.push((number, prose.to_owned()));
            }
            continue;
        };
        let prose = prose.trim_start_matches(['/', '!', '#', ' ', '-', '*', '|']);
        code ^= prose.starts_with("```");
        if prose.is_empty() || code || prose.starts_with("```") {
            open = false;
        } else if let (true, Some((_, paragraph))) = (open, found.last_mut()) {
            paragraph.push(' ');
            paragraph.push_str(prose);
        } else {
            found.push((number, prose.to_owned()));
            open = true;
        }
    }
    found
}

fn patterns() -> anyhow::Result<Vec<(Regex, &'static str)>> {
    PATTERNS.iter().map(|(text, instead)| Ok((Regex::new(text)?, *instead))).collect()
}

/// Finds the forbidden phrases in a text. Each entry has the place, the words, and the advice.
fn odd(path: &Path, text: &str, patterns: &[(Regex, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    for (number, paragraph) in paragraphs(path, text) {
        for (pattern, instead) in patterns {
            if let Some(words) = pattern.find(&paragraph) {
                let words: String = words.as_str().chars().take(60).collect();
                found.push(format!("{}:{number}: {words:?}: write {instead}", show(path)));
            }
        }
    }
    found
}

#[test]
fn prose_is_plain() -> Checked {
    let patterns = patterns()?;
    let mut found = Vec::new();
    for dir in [
        "src", "cpp", "metal", "crates", "tests", "benches", "examples", "scripts", "cmake",
        "docs", "python",
    ] {
        for path in files(dir, &["rs", "h", "cpp", "metal", "py", "sh", "cmake", "md"])? {
            // This file quotes the forbidden phrases.
            if path.ends_with("tests/core/prose.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).with_context(|| show(&path))?;
            found.extend(odd(&path, &text, &patterns));
        }
    }
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "build.rs",
    ] {
        let path = root().join(name);
        found.extend(odd(&path, &fs::read_to_string(&path)?, &patterns));
    }
    assert!(found.is_empty(), "{} odd turns of phrase:\n{}", found.len(), found.join("\n"));
    Ok(())
}

#[test]
fn odd_prose_is_found() -> Checked {
    let patterns = patterns()?;
    for text in [
        "/// A buffer of its own.",
        "// with so\n// many rows",
        "/// The limit; none: there is none.",
        "/// What a chunk leaves.",
        "let x = 1; // What is left",
        "/// Two sums.\n///\n/// The same of halves.",
        "/// Weights of 8 bits as of 4.",
        "/// Counts. Errors: none.",
        "/// All but for the last.",
        "/// The normalised row.",
        "//! Its behaviour.",
    ] {
        let found = odd(Path::new("x.rs"), text, &patterns);
        assert!(!found.is_empty(), "{text}");
    }
    for text in [
        "/// What is left of it? Nothing.",
        "let none: u32 = 1;",
        "/// Its own buffer, with this many rows.",
        "//! ```\n//! let of_its_own = 1; // of its own\n//! ```",
    ] {
        let found = odd(Path::new("x.rs"), text, &patterns);
        assert!(found.is_empty(), "{found:?}");
    }
    Ok(())
}
