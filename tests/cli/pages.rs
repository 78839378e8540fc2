//! Tests the commands that README.md, CONTRIBUTING.md and the book show. Commands of
//! `mlx-primitives` run here, and must print the output that the page shows. Other commands must
//! appear in a script that CI runs. A comment in the page can exclude a block of commands, with the
//! reason.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use regex::Regex;
use tempfile::TempDir;

use crate::lora::texts;
use crate::support::models::DEMO;
use crate::support::{Checked, root};

/// Files with commands that CI runs outside this test.
const RUN_ELSEWHERE: [&str; 6] = [
    ".ci/run",
    ".github/workflows/ci.yml",
    "scripts/bare_roots.sh",
    "scripts/cuda_gpu.sh",
    "scripts/follow_guide.sh",
    "scripts/verify.sh",
];

fn pages() -> Checked<Vec<PathBuf>> {
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    for entry in fs::read_dir(root().join("docs"))? {
        let path = entry?.path();
        // scripts/follow_guide.sh runs the commands of the first page, and crates/metal-check/tests
        // runs the commands of the second page.
        let elsewhere = ["write-your-own-primitive.md", "metal-check.md"];
        if !elsewhere.iter().any(|page| path.ends_with(page))
            && path.extension().is_some_and(|end| end == "md")
        {
            pages.push(path);
        }
    }
    pages.sort();
    Ok(pages)
}

/// A command, and the output that the page shows after it, if there is any.
struct Step {
    place: String,
    command: String,
    output: Option<String>,
}

/// Returns the commands of a page. In a `console` block, a command follows `$ `, and its output
/// follows in the next lines. In an `sh` block, each line is a command. A comment before a block
/// excludes the block.
fn steps(page: &Path) -> Checked<Vec<Step>> {
    let text = fs::read_to_string(page)?;
    let name = page.strip_prefix(root())?.display();
    let blocks = Regex::new(r"(?ms)^(<!-- not run: [^\n]+ -->\n)?```(console|sh)\n(.*?)^```$")?;
    let mut steps: Vec<Step> = Vec::new();
    for block in blocks.captures_iter(&text).filter(|block| block.get(1).is_none()) {
        let start = text[..block.get(3).context("a block")?.start()].lines().count();
        let console = &block[2] == "console";
        for (number, line) in block[3].lines().enumerate() {
            let place = format!("{name}:{}", start + number + 1);
            if let Some(command) = if console { line.strip_prefix("$ ") } else { Some(line) } {
                let output = console.then(String::new);
                steps.push(Step { place, command: command.to_owned(), output });
                continue;
            }
            let step = steps.last_mut().with_context(|| format!("{place}: output first"))?;
            if step.command.ends_with(['|', '\\']) {
                step.command += &format!("\n{line}");
            } else if let Some(output) = &mut step.output {
                *output += &format!("{line}\n");
            }
        }
    }
    Ok(steps)
}

/// Returns true if `text` equals the text `shown` of a page. A `…` in `shown` matches anything.
fn is_as_shown(text: &str, shown: &str) -> Checked<bool> {
    let parts: Vec<String> = shown.split('…').map(regex::escape).collect();
    Ok(Regex::new(&format!("(?s)^{}$", parts.join(".*")))?.is_match(text))
}

/// Replaces all white space between words with one space.
fn bare(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test(simulated = never)]
fn commands_of_the_pages_run_and_print_what_is_shown() -> Checked {
    let elsewhere = RUN_ELSEWHERE
        .iter()
        .map(|file| Ok(bare(&fs::read_to_string(root().join(file))?)))
        .collect::<Checked<String>>()?;
    let data = texts()?;
    let program = TempDir::new()?;
    symlink(env!("CARGO_BIN_EXE_mlx-primitives"), program.path().join("mlx-primitives"))?;
    let path = std::env::var("PATH")?;
    let path = format!("{}:{path}", program.path().display());
    let (mut run, mut unknown) = (0, Vec::new());
    for page in pages()? {
        let folder = TempDir::new()?;
        symlink(data.path(), folder.path().join("texts"))?;
        symlink(DEMO, folder.path().join("MODEL"))?;
        for name in ["crates", "tests"] {
            symlink(root().join(name), folder.path().join(name))?;
        }
        for Step { place, command, output } in steps(&page)? {
            if !command.contains("mlx-primitives ") {
                if !elsewhere.contains(&bare(command.split(" # ").next().unwrap_or(&command))) {
                    unknown.push(format!("{place}: {command}"));
                }
                continue;
            }
            let merged = format!("set -o pipefail\n{{ {command}\n}} 2>&1");
            let ended = Command::new("bash")
                .args(["-c", &merged])
                .current_dir(folder.path())
                .env("PATH", &path)
                .output()?;
            let text = String::from_utf8(ended.stdout)?;
            ensure!(ended.status.success(), "{place}: {command}: {}\n{text}", ended.status);
            if let Some(shown) = output.filter(|shown| !shown.is_empty()) {
                ensure!(is_as_shown(&text, &shown)?, "{place}: {command}\nprints\n{text}");
            }
            run += 1;
        }
    }
    ensure!(unknown.is_empty(), "commands that nothing runs:\n{}", unknown.join("\n"));
    ensure!(run >= 12, "{run} commands were run");
    Ok(())
}

#[test(simulated = never)]
fn what_a_page_shows_is_compared() -> Checked {
    assert!(is_as_shown("a 1 b\nc\n", "a … b\nc\n")?);
    assert!(is_as_shown("a\nb\nc\n", "…\nc\n")?);
    assert!(!is_as_shown("a 1 b\n", "a … c\n")?);
    assert!(!is_as_shown("a.\n", "a+\n")?);
    Ok(())
}

/// The errors that docs/troubleshooting.md quotes must be in the sources, word for word.
#[test(simulated = never)]
fn errors_of_the_page_are_those_of_the_sources() -> Checked {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md"))?;
    let ours = page.lines().filter(|line| line.starts_with("| `") && !line.contains("(of the "));
    let mut sources = String::new();
    let mut folders: Vec<PathBuf> =
        ["src", "crates", "scripts", "cpp", "python"].map(|name| root().join(name)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let is = |end: &&str| path.extension().is_some_and(|it| it == *end);
            if path.is_dir() {
                folders.push(path);
            } else if ["rs", "sh", "py", "cpp"].iter().any(is) {
                sources += &fs::read_to_string(&path)?;
            }
        }
    }
    sources += &fs::read_to_string(root().join("build.rs"))?;
    // Join string literals that continue in the next line of a source.
    let joined = Regex::new(r#"\\\n\s*|"\s*\n\s*""#)?.replace_all(&sources, "").into_owned();
    let mut count = 0;
    for line in ours {
        let error = line.split('`').nth(1).context("an error")?;
        for part in error.split('…').map(str::trim).filter(|part| part.len() > 3) {
            ensure!(joined.contains(part), "no source has the text {part:?} of {line}");
            count += 1;
        }
    }
    ensure!(count >= 25, "{count} texts");
    Ok(())
}
