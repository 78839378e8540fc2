//! C++ calls the CPU kernels with structs. Each struct has the same fields in C++ and in Rust.

use std::collections::BTreeMap;
use std::fs;

use regex::Regex;

use super::{files, root};
use crate::support::Checked;

/// Maps the name of each struct to the names of its fields, in order.
fn structs(text: &str, head: &str, field: &str) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let (head, field) = (Regex::new(head)?, Regex::new(field)?);
    let of = |found: regex::Captures<'_>| {
        let body = &text[found.get(0).map_or(0, |all| all.end())..];
        let body = &body[..body.find("\n}").unwrap_or(body.len())];
        let names = field.captures_iter(body).map(|name| name[1].to_owned()).collect();
        (found[1].to_owned(), names)
    };
    Ok(head.captures_iter(text).map(of).collect())
}

#[test(simulated = never)]
fn calls_of_kernels_have_the_same_fields() -> Checked {
    let header = fs::read_to_string(root().join("cpp/runtime/kernels.h"))?;
    let cpp = structs(
        &header,
        r"(?m)^struct (\w+) \{",
        r"(?m)^  (?:const )?[\w:]+[ *]+(\w+)(?:\[\d\])?;",
    )?;
    let mut rust = BTreeMap::new();
    for path in files("crates/kernels/src", &["rs"])? {
        let text = fs::read_to_string(path)?;
        let head = r"#\[repr\(C\)\]\s*pub struct (\w+) \{";
        for (name, fields) in structs(&text, head, r"(?m)^    (?:pub )?(\w+): ")? {
            assert!(rust.insert(name.clone(), fields).is_none(), "{name} twice");
        }
    }
    assert!(cpp.len() > 12 && cpp.values().all(|fields| fields.len() > 1), "{cpp:?}");
    assert_eq!(cpp, rust);
    Ok(())
}
