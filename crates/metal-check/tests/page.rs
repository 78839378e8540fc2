//! Tests that the page about the command shows the command's real output.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::path::Path;

use common::run;

/// Returns the code blocks of a page: the language, the text, and whether a comment before the
/// block excludes it from the test.
fn blocks(page: &str) -> Vec<(&str, &str, bool)> {
    let mut parts = page.split("\n```");
    let mut before = parts.next().unwrap();
    let mut blocks = Vec::new();
    while let (Some(block), Some(after)) = (parts.next(), parts.next()) {
        let (language, text) = block.split_once('\n').unwrap();
        blocks.push((language, text, before.ends_with("-->")));
        before = after;
    }
    blocks
}

#[test]
fn the_commands_of_the_page_print_what_it_shows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metal-check.md");
    let page = fs::read_to_string(path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut commands = 0;
    for (language, text, left_out) in blocks(&page) {
        if let "metal" | "toml" = language {
            // The comment in the first line of the block ends with the name of the file.
            let name = text.lines().next().unwrap().rsplit(' ').next().unwrap();
            fs::write(folder.path().join(name), format!("{text}\n")).unwrap();
        }
        if language == "console" && !left_out {
            let (command, shown) = text.split_once('\n').unwrap();
            let arguments = command.strip_prefix("$ metal-check ").expect("a command");
            let ran = run(folder.path(), &arguments.split(' ').collect::<Vec<_>>());
            assert_eq!(ran.out.trim_end(), shown, "{command}\n{}", ran.err);
            assert_eq!(ran.status, Some(i32::from(shown.contains("DataRace"))));
            commands += 1;
        }
    }
    assert_eq!(commands, 3);
}
